"""Several processes equal one: torch over gloo, jax over jax.distributed; every rank holds the same bits."""

import functools
from typing import Any

import numpy as np
import pytest
import ranks
from engines import BACKENDS, OPTIMIZERS, advance, comm, config, engine, weights

pytestmark = pytest.mark.xdist_group("world")
STEPS = 10
SHARED = ("kfac", "sgd")  # of jax; the others on two devices of one process, test_optimizers.py
MEMBERS = [
    pytest.param(backend, name, marks=[] if backend == "torch" or name in SHARED else [pytest.mark.slow])
    for backend in BACKENDS
    for name in sorted(OPTIMIZERS)
]
TRUNCATED = {"comm": comm(codec={"module": "mylab.truncate16"}, algorithm="all_to_all", feedback=True).plain()}


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Any:
    """Return a function that starts two processes once for each backend, with the selected tests' optimizers only."""
    chosen = {
        (item.callspec.params["two_processes"], item.callspec.params["optimizer"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and "optimizer" in item.callspec.params
    }

    @functools.cache
    def start(backend: str) -> Any:
        return ranks.start(backend, 2, cases(sorted(name for one, name in chosen if one == backend)))

    return start


@pytest.fixture(params=BACKENDS)
def two_processes(request: pytest.FixtureRequest, started: Any) -> tuple[str, Any]:
    return request.param, started(request.param)


def cases(optimizers: list[str]) -> dict[str, Any]:
    """Return what the two processes train, by name: [optimizer, steps, changes of the configuration]."""
    chosen: dict[str, Any] = {name: [name, STEPS, {}] for name in optimizers}
    chosen |= {f"{name}-2": [name, STEPS, {"accumulate": 2}] for name in ("sgd", "kfac")}
    chosen["first"] = ["sgd", 1, {"precision": "float32", "hyper": {"lr": 1.0, "momentum": 0.0}}]
    chosen["truncated"] = ["sgd", STEPS, {**TRUNCATED, "precision": "float32"}]
    return chosen


def alone(optimizer: str, backend: str, steps: int = STEPS, **changes: Any) -> dict[str, np.ndarray]:
    made = engine(config(optimizer, backend, **changes))
    advance(made, range(steps))
    return weights(made)


def gap(one: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(value - found[name]).max()) for name, value in one.items())


@pytest.mark.parametrize("two_processes, optimizer", MEMBERS, indirect=["two_processes"])
def test_two_processes_equal_one(two_processes: tuple[str, Any], optimizer: str) -> None:
    backend, found = two_processes
    assert gap(alone(optimizer, backend), found[optimizer]) <= 1e-10


def test_two_processes_with_micro_batches_equal_one(two_processes: tuple[str, Any]) -> None:
    backend, found = two_processes
    for name in ("sgd", "kfac"):
        assert gap(alone(name, backend), found[f"{name}-2"]) <= 1e-10


def test_first_gradient_in_float32(two_processes: tuple[str, Any]) -> None:
    """One step of lr 1 without momentum is the gradient; relative to the global norm, because a single tensor's
    gradient may be zero."""
    backend, found = two_processes
    one = alone("sgd", backend, 1, precision="float32", hyper={"lr": 1.0, "momentum": 0.0})
    initial = weights(engine(config("sgd", backend, precision="float32")))
    names = [name for name in one if "running" not in name]
    norm = np.sqrt(sum(float(((one[n] - initial[n]) ** 2).sum()) for n in names))
    error = np.sqrt(sum(float(((one[n] - found["first"][n]) ** 2).sum()) for n in names))
    assert error <= 1e-6 * norm


def test_a_codec_outside_the_tree_changes_what_is_sent(two_processes: tuple[str, Any]) -> None:
    """Half the bytes, nearly the same weights, and the same ones in a single jax process with two devices."""
    backend, found = two_processes
    exact = alone("sgd", backend, precision="float32")
    difference = gap(exact, found["truncated"])
    assert 0.0 < difference < 0.05
    if backend == "jax":
        assert gap(alone("sgd", "jax", world=2, precision="float32", **TRUNCATED), found["truncated"]) == 0.0


def test_the_ledger_counts_what_a_rank_sends(two_processes: tuple[str, Any]) -> None:
    """All-reduce of n float32 values over two ranks: each sends 4 n bytes; the codec outside the tree sends half."""
    _, found = two_processes
    parameters = 4 * 9 + 4 + 4 + 7 * 4 + 16 + 4
    assert found["first"]["sent"] == 4 * parameters
    assert found["truncated"]["sent"] == STEPS * 2 * parameters
