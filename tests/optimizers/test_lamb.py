"""LAMB against optax's own, its bounds, and what the ratio is for."""

from typing import Any

import numpy as np
import optax
import pytest
from alone import BACKENDS, SHAPES, draw, gap, in_jax, pulled, train

from suite.optimizers.lamb.jax import lamb

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("backend", BACKENDS)
HYPER = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1}
PLAIN = {"lr": 0.05, "weight_decay": 0.0, "epsilon": 1e-12}


def norm(value: Any) -> float:
    return float(np.linalg.norm(value))


def moved(backend: str, scale: float = 1.0, **hyper: Any) -> dict[str, Any]:
    """Return the change by one step from the usual start, by a gradient times `scale`."""
    gradient = lambda params, step: {name: scale * value for name, value in pulled(params, step).items()}  # noqa: E731
    found, start = train(backend, "lamb", gradient, hyper=PLAIN | hyper, steps=1), draw(0)
    return {name: found[name] - start[name] for name in start}


def test_jax_equals_optax() -> None:
    """Which adapts vectors too; the decay is masked there."""
    mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
    oracle = optax.lamb(0.05, 0.8, 0.95, 1e-6, weight_decay=0.1, mask=mask)
    assert gap(in_jax(lambda: lamb(**HYPER, adapt_vectors=True)), in_jax(lambda: oracle)) <= 1e-12


def test_without_ratio_it_is_adam() -> None:
    """Vectors, by default; and all of it where the bounds leave no choice."""
    adam = in_jax(lambda: optax.adam(0.05, 0.8, 0.95, 1e-6))
    options: dict[str, Any] = HYPER | {"weight_decay": 0.0}
    found = in_jax(lambda: lamb(**options, adapt_vectors=True, least_ratio=1.0, largest_ratio=1.0))
    assert gap(found, adam) <= 1e-12
    vectors = in_jax(lambda: lamb(**options))
    assert max(float(np.abs(vectors[name] - adam[name]).max()) for name in ("bias", "scale")) <= 1e-12
    assert float(np.abs(vectors["matrix"] - adam["matrix"]).max()) > 1e-3


@both
def test_a_layer_moves_by_the_learning_rate_times_its_norm(backend: str) -> None:
    """Whatever the gradient's size; and vectors only where they are asked to."""
    start = draw(0)
    for scale in (1.0, 1e6, 1e-6):
        step = moved(backend, scale)
        for name in ("matrix", "filter"):
            assert norm(step[name]) == pytest.approx(0.05 * norm(start[name]), rel=1e-5)
        assert norm(step["bias"]) == pytest.approx(0.05 * 5**0.5, rel=1e-5)  # Adam's: η for each element
    assert norm(moved(backend, adapt_vectors=True)["bias"]) == pytest.approx(0.05 * norm(start["bias"]), rel=1e-6)


@both
def test_bounds_hold_the_ratio(backend: str) -> None:
    """Adam's first direction has norm √n, so that the ratio can be told from the step."""
    for bounds, ratio in (({"largest_ratio": 0.01}, 0.01), ({"least_ratio": 40.0}, 40.0)):
        assert norm(moved(backend, **bounds)["matrix"]) == pytest.approx(0.05 * ratio * 12**0.5, rel=1e-6)


@both
def test_weights_of_zero_leave_their_place(backend: str) -> None:
    found = train(backend, "lamb", hyper=PLAIN, steps=1, start={"none": np.zeros((3, 2))})
    assert np.abs(np.abs(found["none"]) - 0.05).max() < 1e-9  # ratio 1: Adam's first step


@both
def test_the_first_float32_steps_are_exact(backend: str) -> None:
    """1 - β₂ᵗ is 1e-3 here, which cancellation would spoil."""
    start = {"w": np.zeros(9, "float32")}
    constant = lambda params, step: {"w": np.full(9, 0.3)}  # noqa: E731
    hyper = {"lr": 1.0, "epsilon": 0.0, "weight_decay": 0.0}
    for steps in (1, 2, 3):
        found = train(backend, "lamb", constant, hyper=hyper, steps=steps, start=start, kind="float32")
        assert np.abs(found["w"] + steps).max() < 3e-6
