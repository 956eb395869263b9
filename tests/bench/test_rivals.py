"""Rivals beside the suite's own method in one process: step ratios to SGD at intervals 1, 10 and 100, p99, memory.

A rival counts its own steps, so it is made twice: refreshing at every step, and at every tenth, measured in between.
What is not installed is skipped. `make rivals` installs pytorch_optimizer; a checkout of facebookresearch/optimizers
goes on PYTHONPATH.
"""

import statistics
from typing import Any

import pytest

from .measure import interleaved, memory, p99
from .test_step import HYPER, MODELS, ROUNDS, STEADY, kinds, made, stepper

pytestmark = pytest.mark.bench
SELDOM = 10  # more than a test's rounds
# path, its arguments, the argument that is its interval, the suite's method
RIVALS: list[tuple[str, str, dict[str, Any], str | None, str]] = [
    (
        "torch",
        "pytorch_optimizer.ScalableShampoo",
        {"block_size": 128, "start_preconditioning_step": 1},
        "preconditioning_compute_steps",
        "shampoo",
    ),
    ("torch", "pytorch_optimizer.SOAP", {"max_precondition_dim": 512}, "precondition_frequency", "soap"),
    ("torch", "pytorch_optimizer.Muon", {}, None, "muon"),
    (
        "torch",
        "distributed_shampoo.DistributedShampoo",
        {"max_preconditioner_dim": 128},
        "precondition_frequency",
        "shampoo",
    ),
    ("jax", "optax.contrib.muon", {}, None, "muon"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend, path, arguments, interval, own", RIVALS, ids=[row[1] for row in RIVALS])
def test_rival(
    backend: str, path: str, arguments: Any, interval: str | None, own: str, model: str, benchmark: Any, capsys: Any
) -> None:
    pytest.importorskip(path.rpartition(".")[0], reason="not installed; see this file's first lines")
    base, ours = made("sgd", backend, model, {"lr": 1e-5}), made(own, backend, model, settings(own, model))
    rival = {backend: path, "lr": 1e-5, "matrices": "use_muon" if path == "pytorch_optimizer.Muon" else None}
    often, seldom = (
        made("external", backend, model, rival | {"arguments": arguments | ({interval: every} if interval else {})})
        for every in (1, SELDOM)
    )
    candidates = {"sgd": stepper(base, 1), "their full": stepper(often, 1), "their plain": stepper(seldom, 1)}
    plan = getattr(ours, "plan", None)
    steps = kinds(plan) if plan and any(plan.programs(step) for step in range(8)) else {"full": 1, "statistics": 1}
    candidates |= {f"our {name}": stepper(ours, steps[name]) for name in ("full", "statistics")}
    for number in range(3):
        stepper(ours, number)()  # state exists after the first refresh
        candidates["their full"]()
    for _ in range(SELDOM):
        candidates["their plain"]()
    seconds = interleaved(candidates, ROUNDS[model])
    benchmark.pedantic(candidates["their full"], rounds=1)
    part = {name: statistics.median(values) / statistics.median(seconds["sgd"]) for name, values in seconds.items()}
    if interval is None:  # nothing to refresh: all steps are alike
        part |= {"their plain": part["their full"], "our statistics": part["our full"]}
    rest = {"their": "their plain", "our": "our statistics"}
    found = {
        who: {f"i{k}": (part[f"{who} full"] + (k - 1) * part[plain]) / k for k in (1, 10, 100)}
        for who, plain in rest.items()
    }
    benchmark.extra_info |= {"ratios": found, "parts": part}
    with capsys.disabled():
        print(f"\n{path} and {own} · {backend} · {model} · sgd {1e3 * statistics.median(seconds['sgd']):.0f} ms")
        for who, engine in (("their", often), ("our", ours)):
            ratios = "  ".join(f"{name} {value:.2f}" for name, value in found[who].items())
            slow = 1e3 * p99(seconds[f"{who} full"])
            print(f"  {who:<6} {ratios} · p99 {slow:.0f} ms · state {memory(engine):.2f} × parameters")
    assert memory(often) > 0.0, "a rival that remembers nothing was not the one that is meant"


def settings(own: str, model: str) -> dict[str, Any]:
    """Return the settings of the suite's method as `test_step.py` measures it."""
    return {"lr": 1e-5, **(HYPER[own] if own in HYPER else STEADY[own, model][0])}
