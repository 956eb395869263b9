"""LARS against optax's own where the conventions agree, and what the ratio is for."""

from typing import Any

import numpy as np
import optax
import pytest
from alone import BACKENDS, SHAPES, draw, gap, in_jax, pulled, train

from suite.optimizers.lars import EPSILON
from suite.optimizers.lars.jax import lars

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("backend", BACKENDS)


def test_jax_equals_optax_without_decay() -> None:
    """With it optax divides by ‖g + λ w‖, where You et al. and MLPerf have ‖g‖ + λ ‖w‖."""
    mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
    oracle = optax.lars(0.5, trust_coefficient=0.1, eps=EPSILON, trust_ratio_mask=mask, momentum=0.8)
    found = in_jax(lambda: lars(lr=0.5, trust=0.1, momentum=0.8, weight_decay=0.0))
    assert gap(found, in_jax(lambda: oracle)) <= 1e-12


@both
def test_a_layer_moves_in_proportion_to_its_norm(backend: str) -> None:
    """‖Δw‖ = η · trust · ‖w‖ in the first step, whatever the gradient's size; vectors take η g."""
    start, hyper = draw(0), {"lr": 2.0, "trust": 0.01, "momentum": 0.9, "weight_decay": 0.0}
    for scale in (1.0, 1e4, 1e-3):
        gradient = lambda params, step, scale=scale: {n: scale * g for n, g in pulled(params, step).items()}  # noqa: E731
        found = train(backend, "lars", gradient, hyper=hyper, steps=1)
        for name in ("matrix", "filter"):
            moved, size = np.linalg.norm(found[name] - start[name]), np.linalg.norm(start[name])
            assert moved == pytest.approx(0.02 * size, rel=1e-5)
        assert np.abs(found["bias"] - start["bias"] + 2.0 * scale * pulled(start, 0)["bias"]).max() <= 1e-9 * scale


@both
def test_weights_of_zero_leave_their_place(backend: str) -> None:
    gradient: Any = lambda params, step: {"none": np.ones((3, 2))}  # noqa: E731
    hyper = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.1}
    found = train(backend, "lars", gradient, hyper=hyper, steps=1, start={"none": np.zeros((3, 2))})
    assert np.abs(found["none"] + 0.5).max() <= 1e-12  # ratio 1
