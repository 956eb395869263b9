"""Every optimizer's and every task's jax programs, lowered for GPUs and TPUs on a machine that has neither.

No program calls the host, moves arrays to it, or leaves the precision of a product to the device. Outside the listed
optimizers, none computes in float64, which is slow there.
"""

import re
from typing import Any

import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from suite.engine.jax_programs import Programs
from suite.settings.run import Run

PLATFORMS = ("cuda", "tpu")
PRECISIONS = ("float32", "bfloat16")
FLOAT64 = ("shampoo",)  # decides in float64 whether a matrix is regular
CALLS = {  # factorisations of the device's own library
    *("cusolver_potrf_ffi", "cusolver_geqrf_ffi", "cusolver_orgqr_ffi", "cusolver_syevd_ffi"),
    *("Qr", "ProductOfElementaryHouseholderReflectors", "Eigh", "Cholesky"),
}
HOST = re.compile(r"callback|infeed|outfeed|stablehlo\.send|stablehlo\.recv|annotate_device_placement")
STACKS = re.compile(r"custom_call @\w+\(.*: \(tensor<(\d+)x\d+x\d+xf32>")  # factorised in one call
WIDENING = re.compile(r"\(tensor<[\dx]*bf16>, tensor<[\dx]*bf16>\) -> tensor<[\dx]*f32>")
NARROW = re.compile(r"stablehlo\.(?:dot_general|convolution)[^\n]*-> tensor<[\dx]*bf16>")
PRODUCT = re.compile(r"stablehlo\.(?:dot_general|convolution)[^\n]*")


def find_faults(text: str, *, float64: bool = False) -> list[str]:
    """Return the faults of a lowered program; `float64` may be allowed."""
    faults = [f"calls {name}" for name in re.findall(r"custom_call @([\w.$]+)", text) if name not in CALLS]
    faults += [f"uses the host: {word}" for word in HOST.findall(text)]
    faults += ["computes in float64"] * ("f64>" in text and not float64)
    return faults + [f"states no precision: {line}" for line in PRODUCT.findall(text) if line.count("HIGHEST") != 2]


def lower_programs(run: Run, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return the programs of six steps as text, by platform."""
    texts: dict[str, list[str]] = {platform: [] for platform in PLATFORMS}
    usual = jax.stages.Traced.lower

    def lower_for_all(traced: Any, **options: Any) -> Any:
        for platform in PLATFORMS:
            texts[platform].append(usual(traced, lowering_platforms=(platform,)).as_text())
        return usual(traced, **options)

    monkeypatch.setattr(jax.stages.Traced, "lower", lower_for_all)
    monkeypatch.setattr(Programs, "compile", lambda self, lowered: None)
    engine = engines.engine(run, engines.tiny() if run.task.name == "tiny" else small.make_small(run))
    engine.warm(engine.task.batch("train", 0, 0), range(6), {})
    return texts


def describe_run(optimizer: str, precision: str = "float32") -> Run:
    """A run on the tiny task."""
    return engines.config(optimizer, "jax", precision=precision, clip_norm=1.0)


def check_programs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no program of a run has a fault."""
    for platform, texts in lower_programs(run, monkeypatch).items():
        assert texts
        for text in texts:
            assert not find_faults(text, float64=run.optimizer.name in FLOAT64), platform


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", engines.INSIDE)
def test_every_optimizer(optimizer: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_programs(describe_run(optimizer, precision), monkeypatch)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("task", small.TASKS)
def test_every_task(task: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["optimizer=sgd", "backend=jax", f"precision={precision}", "max_steps=6"]
    check_programs(small.small(task, small.TASKS[task][0], *words), monkeypatch)


@pytest.mark.parametrize("optimizer", ["kfac", "muon"])
def test_statistics_and_updates_are_float32_beside_a_model_in_bfloat16(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = {}
    for name in ("sgd", optimizer):
        lowered = lower_programs(describe_run(name, "bfloat16"), monkeypatch)
        narrow[name] = [max(len(NARROW.findall(text)) for text in lowered[platform]) for platform in PLATFORMS]
    assert narrow[optimizer] == narrow["sgd"], "the model's products alone have bfloat16 results"
    for texts in lowered.values():
        products = [line for text in texts for line in PRODUCT.findall(text)]
        assert any("bf16>" in line for line in products) and any("f32>" in line for line in products)
        statistics = [line for line in products if WIDENING.search(line)]  # products in bfloat16, sums in float32
        assert bool(statistics) == (optimizer == "kfac")


@pytest.mark.parametrize("optimizer, count", [("kfac", 3), ("soap", 4)])
def test_a_gpu_factorises_matrices_of_one_size_in_one_call(
    optimizer: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = lower_programs(describe_run(optimizer), monkeypatch)["cuda"]
    assert max(int(size) for text in texts for size in STACKS.findall(text)) == count


def test_faults_are_found() -> None:
    def call_host(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, x, x)

    def widen(x: jax.Array) -> jax.Array:
        return (x.astype(jnp.float64) * 2.0).astype(jnp.float32)

    expected = {
        call_host: "uses the host",
        widen: "float64",
        jnp.linalg.cholesky: "calls",
        lambda x: x @ x: "no precision",
    }
    with jax.enable_x64(True):
        for function, fault in expected.items():
            lowered = jax.jit(function).lower(jnp.ones((2, 2), jnp.float32))
            assert any(fault in found for found in find_faults(lowered.as_text())), fault
