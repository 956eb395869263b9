"""When gradients travel: overlap changes no bit, double buffering is one step late, and a restored run goes on."""

import functools
from typing import Any

import numpy as np
import pytest
import ranks
from engines import BACKENDS, advance, comm, config, engine, gap, put, same, weights
from sampling import mostly_torch

from suite.optimizers.sgd import Settings, reference

pytestmark = pytest.mark.xdist_group("schedules")
STEPS = 8
PLAIN = {"hyper": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}}
LATE = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}  # of two ranks that are one step late
LOSSY = {"codec": "bfloat16", "algorithm": "all_to_all", "feedback": True, "bucket_mib": 0}
# rank 0 leads rank 1, which has no residuals of what travels between hosts
LED = LOSSY | {"topology": "leader", "ranks_per_host": 2, "inner": "bfloat16", "codec": "float21"}
WAYS: dict[str, dict[str, Any]] = {
    "sync": {"bucket_mib": 0},
    "overlap": {"bucket_mib": 0, "schedule": "overlap"},
    "stale": {"bucket_mib": 0, "schedule": "stale"},
    "lossy sync": LOSSY,
    "lossy overlap": LOSSY | {"schedule": "overlap"},
    "lossy stale": LOSSY | {"schedule": "stale"},
    "hosts": {"topology": "two_level", "ranks_per_host": 1, "codec": "float21", "algorithm": "ring", "feedback": True},
    "leaders": {"topology": "leader", "ranks_per_host": 1, "codec": "float21", "algorithm": "gather"},
    "led": LED,
}
RESTORED = ("lossy overlap", "lossy stale", "hosts", "led")
FISHER = ("empirical", "sampled")


def case(name: str, optimizer: str = "sgd", **changes: Any) -> list[Any]:
    return [optimizer, STEPS, {"precision": "float32", "accumulate": 2, "comm": comm(**WAYS[name]), **changes}]


SOME = ("sync", "overlap", "lossy sync", "lossy overlap")


@pytest.fixture(scope="module")
def started() -> Any:
    """Return a function that runs some of `WAYS` in two processes; `ranks.start` asserts that their bits are equal."""
    return functools.cache(lambda backend, names: ranks.start(backend, 2, {name: case(name) for name in names}))


@mostly_torch
def test_overlap_changes_no_bit(backend: str, started: Any) -> None:
    found = started(backend, SOME)
    assert same(found["sync"], found["overlap"]) and same(found["lossy sync"], found["lossy overlap"])
    assert not same(found["sync"], found["lossy sync"])


@mostly_torch
def test_factors_that_overlap_change_no_bit(backend: str) -> None:
    """With error feedback: a factor that were sent twice, or under another name, would leave another residual."""
    cases = {}
    for fisher in FISHER:  # intervals: some steps have factors to send and some have none
        hyper = {"fisher": fisher, "factor_interval": 2, "inverse_interval": 4, "lr": 0.02}
        cases |= {f"{fisher} {name}": case(name, "kfac", hyper=hyper) for name in ("lossy sync", "lossy overlap")}
    found = ranks.start(backend, 2, cases)
    for fisher in FISHER:
        assert same(found[f"{fisher} lossy sync"], found[f"{fisher} lossy overlap"])


@mostly_torch
def test_residuals_and_late_gradients_survive_a_restore(backend: str) -> None:
    cases = {name: case(name) for name in RESTORED}
    found = ranks.start(backend, 2, cases | {f"{name}, restored": case(name, restored=[3, 5]) for name in RESTORED})
    for name in RESTORED:
        assert same(unsent(found[name]), found[f"{name}, restored"]), name


@pytest.mark.slow
@mostly_torch
def test_residuals_of_two_hosts_with_leaders_survive_a_restore(backend: str) -> None:
    """Four ranks; those that lead have more residuals, and send more bytes."""
    how = {"accumulate": 1, "apart": ["sent"]}
    cases = {"whole": case("led", **how), "restored": case("led", **how, restored=[3, 5])}
    found = ranks.start(backend, 4, cases)
    assert same(unsent(found["whole"]), found["restored"])


def unsent(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All but the bytes, which a new engine counts anew."""
    return {name: value for name, value in found.items() if name != "sent"}


@mostly_torch
def test_ways_differ_by_rounding_only(backend: str, started: Any) -> None:
    """Momentum and ten steps on the tiny task: bfloat16 with feedback stays within a hundredth, 21 bits nearer."""
    found = started(backend, tuple(WAYS))
    names = [name for name in found["sync"] if name not in ("sent", "losses")]
    for name, bound in (("lossy sync", 1e-2), ("hosts", 1e-3), ("leaders", 1e-3)):
        gaps = [float(np.abs(found["sync"][n] - found[name][n]).max()) for n in names]
        assert 0 < max(gaps) < bound, name
    assert max(float(np.abs(found["sync"][n] - found["stale"][n]).max()) for n in names) > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_step_late(backend: str) -> None:
    """Update 1 is none, update 2 is the first of an ordinary run, update 3 takes its gradient before update 2."""
    late = engine(config("sgd", backend, comm=comm(schedule="stale"), **PLAIN))
    initial = weights(late)
    ends = []
    for step in range(3):
        advance(late, range(step, step + 1))
        ends.append(weights(late))

    def moved(step: int) -> dict[str, np.ndarray]:
        made = engine(config("sgd", backend, **PLAIN))
        for before in range(step):  # what goes on from batch to batch does, the weights do not
            advance(made, range(before, before + 1), lr=0.0)
        advance(made, range(step, step + 1), lr=0.1)
        return weights(made)

    trained = [name for name in initial if "running" not in name]
    first, second = moved(0), moved(1)
    assert all(np.array_equal(ends[0][name], initial[name]) for name in trained)
    assert all(np.array_equal(ends[1][name], first[name]) for name in trained)
    third = {name: ends[1][name] + (second[name] - initial[name]) for name in trained}
    assert gap({name: ends[2][name] for name in trained}, third) <= 1e-12


@mostly_torch
def test_two_ranks_update_with_the_mean_of_their_last_gradients(backend: str) -> None:
    """As the update's specification does with the gradients of one rank, which has both ranks' samples and sends none.

    At a rate of 1, without momentum, that rank's step is its gradient.
    """
    late = case("stale", precision="float64", hyper=LATE)
    found, alone = (
        ranks.start(backend, 2, {"late": late})["late"],
        engine(config("sgd", backend, accumulate=2, **PLAIN)),
    )
    params = {name: value for name, value in weights(alone).items() if "running" not in name}
    last = {name: np.zeros_like(value) for name, value in params.items()}
    state, losses = reference.init(params), []
    for step in range(STEPS):
        put(alone, params)
        losses += advance(alone, range(step, step + 1), lr=1.0)
        after = weights(alone)
        gradients = {name: value - after[name] for name, value in params.items()}
        params, state = reference.update(params, last, state, Settings.given(LATE))
        last = gradients
    assert gap({name: found[name] for name in params}, params) <= 1e-9
    assert np.abs(found["losses"] - losses).max() <= 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schedule", ["sync", "overlap", "stale"])
def test_one_rank_has_nothing_to_send(backend: str, schedule: str) -> None:
    made = engine(config("sgd", backend, comm=comm(schedule=schedule)))
    advance(made, range(2))
    assert made.facts()["bytes"]["sent"] == 0
