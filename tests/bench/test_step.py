"""Optimizers against SGD per step; those with a refresh at intervals 1, 10 and 100, beside the peers' stored ratios.

Steps with and without statistics and refresh are measured apart; an interval's ratio is computed from these parts.
"""

import statistics
from pathlib import Path
from typing import Any

import engines
import pytest
import yaml

from suite import load

from .measure import check_limit, interleaved, memory, p99, peak, ratio

pytestmark = pytest.mark.bench
PEERS = yaml.safe_load((Path(__file__).parents[2] / "results/baselines/peers.yaml").read_text())
MODELS = {"conv": "resnet18", "xf": "encoder"}
ROUNDS = {"conv": 3, "xf": 4}
# intervals at which every kind of step occurs
HYPER: dict[str, dict[str, Any]] = {
    "kfac": {"factor_interval": 2, "inverse_interval": 4, "lr": 1e-5},
    "shampoo": {"inverse_interval": 2, "start_preconditioning": 1, "block_size": 128, "lr": 1e-5},
    "soap": {"precondition_frequency": 2, "start_preconditioning": 1, "max_size": 512, "lr": 1e-5},
}
HYPER["shampoo eigh32"] = HYPER["shampoo"] | {"root": "eigh32"}  # the first word is the optimizer's name
# torch's largest ratios at intervals 1, 10 and 100
LIMITS = {("soap", "xf"): (3.0, 1.45, 1.3), ("soap", "conv"): (1.4, 1.3, 1.25)}
# of the 10 % that Shampoo adds to each step on xf, the four products with 128 × 128 blocks are 9
LIMITS |= {("shampoo eigh32", "xf"): (1.8, 1.2, 1.12), ("shampoo eigh32", "conv"): (1.55, 1.13, 1.09)}
LIMITS |= {("kfac", "xf"): (2.5, 2.0, 1.9), ("kfac", "conv"): (3.8, 2.8, 2.7)}
# and where statistics are taken only in the steps that refresh; at 100 the goals are 1.15 and 1.2, but products with
# the inverses alone are 15 and 22 % of SGD's step
RARE_LIMITS = {("kfac", "xf"): (2.5, 1.3, 1.18), ("kfac", "conv"): (3.8, 1.5, 1.28)}
# torch's largest ratio of optimizers without a refresh. Muon's products on xf alone are a third of SGD's whole step in
# float32, and a fifth in bfloat16
STEADY: dict[tuple[str, str], tuple[dict[str, Any], float | None]] = {
    ("muon", "xf"): ({}, None),
    ("muon bfloat16", "xf"): ({"bfloat16": True}, 1.35),
    ("muon", "conv"): ({}, 1.15),
    # no goals: two passes through the network, and all samples' gradients squared
    **{(name, model): ({}, None) for name in ("kbfgs", "vogn") for model in MODELS},
}


def made(optimizer: str, backend: str, model: str, hyper: dict[str, Any]) -> Any:
    name = optimizer.partition(" ")[0]
    return make_engine(backend, model, {**engines.OPTIMIZERS[name], **engines.SETTINGS.get(name, {}), **hyper})


def make_engine(backend: str, model: str, node: dict[str, Any]) -> Any:
    settings = engines.change(engines.config("sgd", backend, precision="float32"), {"optimizer": node})
    return engines.engine(engines.change(settings, {"task": {"module": f"mylab.{MODELS[model]}"}}))


def kinds(plan: Any) -> dict[str, int]:
    """A step number of each kind, asked of the plan: `full` refreshes, `statistics` only observes, `plain` neither.

    Where the plan has no word for statistics they are taken from each gradient, so no step is plain.
    """
    always = not any(plan.phase(step) for step in range(8))
    found = {}
    for step in range(8, 1, -1):
        observes = always or bool(plan.phase(step))
        found["full" if plan.programs(step) else "statistics" if observes else "plain"] = step
    return found


def stepper(engine: Any, number: int) -> Any:
    batch = engine.task.batch("train", 0, 0)

    def call() -> None:
        engine.step(number, batch, {})
        engine.synchronize()

    return call


def peers(backend: str, model: str, optimizer: str, factors: str | None = None) -> list[dict[str, Any]]:
    """Return the stored rows of an optimizer, whose name is the first word."""
    asked = backend, model, optimizer.partition(" ")[0], factors
    return [row for row in PEERS if (row["backend"], row["model"], row["method"], row.get("factors")) == asked]


def steady(
    backend: str, model: str, name: str, engine: Any, call: Any, seconds: dict[str, list[float]], base: str
) -> dict[str, Any]:
    """Return the row of an optimizer all of whose steps are alike."""
    each, middle = ratio(seconds, name, base)["median"], statistics.median(seconds[base])
    return {
        **{"backend": backend, "model": model, "optimizer": name, "factors": "", "i1": each, "i10": each, "i100": each},
        "p99": round(p99(seconds[name]) / middle, 2),
        "state": round(memory(engine), 2),
        "peak": round(peak(engine, call), 2),
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", load.BACKENDS)
@pytest.mark.parametrize("optimizer", sorted(HYPER))
def test_step_against_sgd(optimizer: str, backend: str, model: str, benchmark: Any, capsys: Any) -> None:
    base, ours = made("sgd", backend, model, {"lr": 1e-5}), made(optimizer, backend, model, HYPER[optimizer])
    steps = {kind: stepper(ours, number) for kind, number in kinds(ours.plan).items()}
    candidates = {"sgd": stepper(base, 1), **steps}
    for number in range(2):
        stepper(ours, number)()  # state exists after the first refresh
    seconds = interleaved(candidates, ROUNDS[model])
    benchmark.pedantic(candidates["full"], rounds=ROUNDS[model])
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    part = {name: value / middle["sgd"] for name, value in middle.items()}
    rows = {"every": part["statistics"]} | ({"refresh": part["plain"]} if "plain" in part else {})
    found = {kind: {f"i{k}": (part["full"] + (k - 1) * rest) / k for k in (1, 10, 100)} for kind, rest in rows.items()}
    spread = {name: [min(values), max(values)] for name, values in seconds.items()}
    benchmark.extra_info |= {"ratios": found, "parts": part, "seconds": spread}
    held = {
        "p99": round(p99(seconds["full"]) / middle["sgd"], 2),
        "state": round(memory(ours), 2),
        "peak": round(peak(ours, candidates["full"]), 2),
    }
    if engines.DEVICE != "cpu":
        benchmark.extra_info["device"] = base.facts()["device"]
    benchmark.extra_info["rows"] = [
        {"backend": backend, "model": model, "optimizer": optimizer, "factors": kind, **ratios, **held}
        for kind, ratios in found.items()
    ]
    if backend == "jax":
        compile_seconds = [engine.facts()["compile_seconds"] for engine in (base, ours)]
        benchmark.extra_info["compile_seconds"] = dict(zip(("sgd", optimizer), compile_seconds, strict=True))
    with capsys.disabled():
        least, most = spread["sgd"]
        print(f"\n{optimizer} · {backend} · {model} · sgd {1e3 * middle['sgd']:.0f} ms ({least:.3f} to {most:.3f} s)")
        slow = "  ".join(f"{name} {1e3 * p99(values):.0f} ms" for name, values in seconds.items())
        print(f"  p99: {slow} · state {held['state']} × parameters, in a step at most {held['peak']} more")
        for kind, ratios in found.items():
            print(f"  factors {kind:<8} ours " + "  ".join(f"{name} {value:.2f}" for name, value in ratios.items()))
            for row in peers(backend, model, optimizer, kind):
                numbers = "  ".join(f"{i} {row[i]:.2f}" for i in ("i1", "i10", "i100") if i in row)
                print(f"  {'':16} peer {numbers}  {row['peer']}")
    check_limit(part["full"] >= 0.95 * part["statistics"], "a refresh cannot cost less than a step without one")
    if backend == "torch" and engines.DEVICE == "cpu":
        for kind, limits in {"every": LIMITS, "refresh": RARE_LIMITS}.items():
            if (optimizer, model) in limits:
                for value, limit in zip(found[kind].values(), limits[optimizer, model], strict=True):
                    check_limit(value <= limit)


@pytest.mark.parametrize("optimizer, model", STEADY)
@pytest.mark.parametrize("backend", load.BACKENDS)
def test_steady_step_against_sgd(optimizer: str, backend: str, model: str, benchmark: Any, capsys: Any) -> None:
    hyper, limit = STEADY[optimizer, model]
    compared = {
        "sgd": made("sgd", backend, model, {"lr": 1e-5}),
        optimizer: made(optimizer, backend, model, {"lr": 1e-5, **hyper}),
    }
    candidates = {name: stepper(engine, 1) for name, engine in compared.items()}
    seconds = interleaved(candidates, 2 * ROUNDS[model])
    benchmark.pedantic(candidates[optimizer], rounds=ROUNDS[model])
    found = ratio(seconds, optimizer, "sgd")
    row = steady(backend, model, optimizer, compared[optimizer], candidates[optimizer], seconds, "sgd")
    if engines.DEVICE != "cpu":
        benchmark.extra_info["device"] = compared["sgd"].facts()["device"]
    benchmark.extra_info |= {"ratio": found, "rows": [row]}
    with capsys.disabled():
        print(
            f"\n{optimizer} · {backend} · {model} · {found['median']:.3f} ({found['least']:.2f} to {found['most']:.2f})"
            f" · p99 {row['p99']} · state {row['state']} × parameters, in a step at most {row['peak']} more"
        )
        for peer in peers(backend, model, optimizer):
            print(f"  peer {peer['each']:.2f}  {peer['peer']}")
    if backend == "torch" and engines.DEVICE == "cpu" and limit:
        check_limit(found["median"] <= limit)
