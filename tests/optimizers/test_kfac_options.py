"""Every option of K-FAC: one specification, both backends, any number of micro-batches, devices and processes."""

from typing import Any

import engines
import numpy as np
import pytest
import ranks
from conformance.test_reference import specified
from engines import BACKENDS, advance, comm, config, engine, gap, weights
from sampling import mostly_torch, sampled

from suite.contract import UserError

STEPS = 10
EVERY = {"factor_interval": 1, "inverse_interval": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {"batchnorm": "full"},
    "stale": {**EVERY, "stale": True, "stale_alpha": 0.15, "factor_decay": 0.5},
    "stale, no average": {**EVERY, "stale": True, "stale_alpha": 0.15, "factor_decay": 0.0, "batchnorm": "full"},
    "equal": {"damping_split": "equal", "inverse_warmup": 2},
    "gradient": {"momentum_on": "gradient", "kl_clip": 1e-5},
    "clipped": {"kl_clip": 1e-5},
    "rescale": {"rescale": True},
    "sampled": {"fisher": "sampled"},
    "model": {"quadratic_model": True, "damping": 1.0},
    "model, full": {"quadratic_model": True, "batchnorm": "full", "damping_split": "equal"},
}
# test_sampled.py and conformance/test_optimizers.py ask the rest of what is drawn
each = pytest.mark.parametrize("option", [option for option in OPTIONS if option != "sampled"])
both = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def alone() -> Any:
    """Weights after STEPS updates on one device, and what was counted."""
    cache: dict[Any, Any] = {}

    def run(option: str, backend: str, precision: str = "float64", **changes: Any) -> Any:
        key = option, backend, precision, str(changes)
        if key not in cache:
            made = engine(config("kfac", backend, precision=precision, hyper=OPTIONS[option] | changes))
            advance(made, range(STEPS))
            cache[key] = weights(made), made.facts()["optimizer"]
        return cache[key]

    return run


@each
def test_both_backends_follow_the_reference(option: str, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.SETTINGS, "kfac", engines.SETTINGS["kfac"] | OPTIONS[option])
    expected = specified("kfac")
    monkeypatch.undo()
    counted = []
    for backend in BACKENDS:
        found, facts = alone(option, backend)
        assert gap({name: found[name] for name in expected}, expected) <= 1e-10, backend
        counted.append(facts)
    assert counted[0] == counted[1]


@each
def test_an_option_changes_the_run(option: str, alone: Any) -> None:
    default = engine(config("kfac", "torch", hyper=EVERY if "stale" in option else {}))
    advance(default, range(STEPS))
    assert gap(weights(default), alone(option, "torch")[0]) > 1e-6


@pytest.mark.parametrize("option", OPTIONS)
@mostly_torch  # in jax on two devices, below
def test_micro_batches_equal_one_large_batch(option: str, backend: str, alone: Any) -> None:
    made = engine(config("kfac", backend, hyper=OPTIONS[option], accumulate=4))
    advance(made, range(STEPS))
    assert gap(weights(made), alone(option, backend)[0]) <= 1e-10
    assert made.facts()["optimizer"] == alone(option, backend)[1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", [option for option in OPTIONS if option != "sampled"])
def test_two_jax_devices_equal_one(option: str, alone: Any) -> None:
    made = engine(config("kfac", "jax", hyper=OPTIONS[option], world=2))
    advance(made, range(STEPS))
    assert gap(weights(made), alone(option, "jax")[0]) <= 1e-10


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "option, steps, backend",
    sampled(
        [
            ("stale", range(STEPS)),
            ("full", range(STEPS)),
            ("gradient", range(STEPS)),
            ("sampled", (0, 2)),
            ("model", (0, 3)),
        ],
        BACKENDS,
    ),
)
def test_restored_at_any_step_goes_on_bit_for_bit(option: str, steps: Any, backend: str, alone: Any) -> None:
    expected, counted = alone(option, backend, "float32")
    made = engine(config("kfac", backend, precision="float32", hyper=OPTIONS[option]))
    for step in range(STEPS - 1):
        advance(made, range(step, step + 1))
        if step not in steps:
            continue
        arrays, skeleton = made.snapshot()
        again = engine(config("kfac", backend, precision="float32", hyper=OPTIONS[option]))
        again.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
        advance(again, range(step + 1, STEPS))
        assert gap(weights(again), expected) == 0.0, f"restored after step {step + 1}"
        assert again.facts()["optimizer"] == counted


@pytest.mark.xdist_group("world")
@mostly_torch
def test_two_processes_equal_one(backend: str, alone: Any) -> None:
    """All ranks decide alike, also when restored between refreshes; triangles or whole factors are sent."""
    cases: dict[str, Any] = {
        name: ["kfac", STEPS, {"hyper": OPTIONS[name]}] for name in ("stale", "full", "sampled", "model")
    }
    cases["restored"] = ["kfac", STEPS, {"hyper": OPTIONS["stale"], "restored": [3, 6, 7]}]
    factors = comm().factors.plain() | {"symmetric": False}
    cases["whole"] = ["kfac", STEPS, {"hyper": OPTIONS["stale"], "comm": comm(factors=factors)}]
    found = ranks.start(backend, 2, cases)
    for name, case in found.items():
        one = alone(name if name in OPTIONS else "stale", backend)[0]
        assert max(float(np.abs(value - case[key]).max()) for key, value in one.items()) <= 1e-10, name


@both
def test_a_bound_on_a_steps_length_may_be_taken_off(backend: str) -> None:
    ends = []
    for start in (0.0, 1e-6):
        made = engine(config("kfac", backend, hyper={"kl_clip": start}))
        made.step(0, made.task.batch("train", 0, 0), {"kl_clip": 0.0})
        ends.append(weights(made))
    assert gap(*ends) == 0.0
    fresh = weights(engine(config("kfac", backend)))
    assert np.abs(fresh["fc.weight"] - ends[0]["fc.weight"]).max() > 1e-3


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "backend, option",
    [*(("torch", option) for option in OPTIONS), *(("jax", option) for option in ("stale, no average", "clipped"))],
)
def test_damping_means_the_same_at_any_batch_size(backend: str, option: str) -> None:
    """Every sample twice, in batch normalisations of the same groups: the same steps."""
    ends = []
    for copies in (1, 2):
        task = engines.tiny(batch_size=16 * copies)
        made = engine(config("kfac", backend, hyper=OPTIONS[option]), task)
        for step in range(4):
            batch = engines.tiny(batch_size=16).batch("train", 0, step)
            made.step(step, {name: np.concatenate([value] * copies) for name, value in batch.items()}, {})
        ends.append(weights(made))
    assert gap(*ends) <= 1e-10


@pytest.mark.parametrize(
    "hyper, words",
    [
        ({"fisher": "mc"}, "one of empirical, sampled"),
        ({"batchnorm": "none"}, "one of unit, full"),
        ({"damping_split": "half"}, "one of pi, equal"),
        ({"momentum_on": "weights"}, "one of direction, gradient"),
        ({"stale": True}, "set optimizer.factor_interval=1 optimizer.inverse_interval=1"),
    ],
)
@both
def test_errors_say_what_to_type(hyper: dict[str, Any], words: str, backend: str) -> None:
    with pytest.raises(UserError, match=words):
        engine(config("kfac", backend, hyper=hyper))
