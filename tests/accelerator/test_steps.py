"""Steps on a pretend GPU: they equal those on the CPU, and the host waits for the device no more often than listed.

Every optimizer trains the tiny task in both precisions; every task is trained with SGD, and in `make test-all` with
every optimizer.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import pytest
import small

from suite.engine.torch_device import set_switches

pytestmark = pytest.mark.xdist_group("accelerator steps")
OPTIMIZERS = {f"{name} {kind}": (name, None, 0, kind) for name in engines.INSIDE for kind in ("float32", "bfloat16")}
TASKS = {f"{name} sgd": ("sgd", name, 0, "float32") for name in small.TASKS}
TASKS |= {
    "bert of sparse matrices adamw": ("adamw", "bert", 4, "float64"),  # rounding to float32 decides which blocks move
    "transformer with a search sgd": ("sgd", "transformer", 1, "float32"),
}
TASKS |= {f"{name} sampled": ("kfac optimizer.fisher=sampled", name, 0, "float64") for name in small.TASKS}
# the most waits in a step, in the median step, and in the last step, a refresh; no other optimizer waits
WAITS = {"soap": (6, 0, 0), "shampoo": (7, 0, 7)}
MOVES = 180  # waits of a step in which blocks of sparse matrices move, which the host decides
STAGED = 2**16  # bytes that CUDA copies without a wait, also from memory that is not pinned
ROUNDING = 1e-5  # some functions have other methods off the CPU
NEAR = 1e-6  # largest difference in float64, but for those that are loose
# largest share of the movement by which weights differ, because convolutions and attention have other kernels; a
# normalised step magnifies rounding
SHARES = {"float64": 1e-5, "float32": 0.3, "bfloat16": 0.5}
LOOSE = {"sm3": 0.3, "soap": 0.3}  # divides by a root of tiny squares at first; its vectors may change their sign
FIRST = 24  # the most waits of SOAP's first refresh, one for each matrix

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def optimizers(on_device: Callable[..., Any]) -> Found:
    return on_device("accelerator.steps.measure", OPTIMIZERS, 9)


@pytest.fixture(scope="module")
def tasks(on_device: Callable[..., Any]) -> Found:
    return on_device("accelerator.steps.measure", TASKS, 2)


def check(case: dict[str, Any], most: int = 0, usual: int = 0, last: int = 0, *, near: float = ROUNDING) -> None:
    """Check one case."""
    assert "error" not in case, case["error"]
    assert case["gap"] <= near
    assert not case["elsewhere"], "state that is not on the device"
    assert set(case["kinds"]) <= {"torch.float32", "torch.float64"}  # counters are float64
    counts = [sum(step.values()) for step in case["waits"]]
    assert max(counts) <= most and sorted(counts)[len(counts) // 2] <= usual and counts[-1] <= last, case["waits"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(optimizers: Found, name: str) -> None:
    check(optimizers[name], *WAITS.get(OPTIMIZERS[name][0], ()))
    assert not optimizers[name]["wide"]
    assert bool(optimizers[name]["summed"]) == (name == "kfac bfloat16")  # products of its statistics


@pytest.mark.parametrize("name", TASKS)
def test_every_task(tasks: Found, name: str) -> None:
    check(tasks[name], *[MOVES] * 3 if "sparse" in name else ())


def test_photographs_arrive_as_bytes(on_device: Callable[..., Any], written: Path) -> None:
    found = on_device("accelerator.steps.compare_bytes", str(written))
    assert found["bytes"] and found["gap"] <= ROUNDING and found["waits"] == [{}, {}, {}]


def test_a_large_batch_is_copied_without_a_wait(on_device: Callable[..., Any]) -> None:
    found = on_device("accelerator.steps.measure_large_batches")
    assert found["largest"] > STAGED and found["waits"] == [{}, {}] and found["pinned"]


@pytest.mark.slow
@pytest.mark.parametrize("task", small.TASKS)
@pytest.mark.parametrize("precision", SHARES)
def test_every_optimizer_trains_every_task(on_device: Callable[..., Any], task: str, precision: str) -> None:
    """Images have their channels last."""
    cases = {name: (name, task, 0, precision) for name in engines.INSIDE}
    for name, case in on_device("accelerator.steps.measure", cases, 2).items():
        waits = [FIRST] * 3 if name == "soap" else []
        check(case, *waits, near=NEAR if precision == "float64" and name not in LOOSE else math.inf)
        assert case["share"] <= max(SHARES[precision], LOOSE.get(name, 0.0)), name


def test_deterministic_products_have_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with set_switches("float32", deterministic=False):
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    with set_switches("float32", deterministic=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with set_switches("float32", deterministic=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
