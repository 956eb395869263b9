"""Statements of torch's and optax's documentation."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import adafactor, rmsprop

torch = pytest.importorskip("torch")
pytest.importorskip("optax")


def test_rmsprop_of_torch_and_optax_equals_numpy() -> None:
    from suite.studies.rmsprop.jax import moved as moved_by_optax
    from suite.studies.rmsprop.torch import moved as moved_by_torch

    gradients = np.random.default_rng(0).standard_normal((4, 3))
    second, x = np.zeros(3), np.zeros(3)
    for gradient in gradients:
        second = 0.9 * second + 0.1 * gradient**2
        x = x - 0.01 * gradient / (np.sqrt(second) + 1e-8)
    np.testing.assert_allclose(moved_by_torch(gradients, 0.9), x, rtol=1e-12)
    np.testing.assert_allclose(moved_by_optax(gradients, 0.9, False), x, rtol=1e-12)


def test_the_switch_works_for_equal_decays_and_not_for_the_defaults() -> None:
    assert holds("optax-rmsprop-switch", "switched") and holds("optax-rmsprop-switch", "default")
    assert not holds("optax-rmsprop-defaults", "defaults")


def test_the_other_switch_changes_the_verdict() -> None:
    assert rmsprop.measure(0, decay=0.9, eps_in_sqrt=True, size=1e-4) > 1e-9


def test_the_statement_on_adafactor_holds_for_large_gradients_and_not_for_small_ones() -> None:
    for seed in range(3):
        assert holds("torch-adafactor-means", "large", seed) and not holds("torch-adafactor-means", "small", seed)


def test_the_lower_bound_explains_the_whole_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """With epsilon1 multiplied by the elements, the bound of the sum is the bound of the mean."""

    def means(
        parameter: np.ndarray, gradient: np.ndarray, factors: tuple[np.ndarray, np.ndarray], step: int
    ) -> np.ndarray:
        row, column = factors[0] / gradient.shape[1], factors[1] / gradient.shape[0]
        variance = row @ column / max(row.mean(), adafactor.EPSILON1)
        update = gradient / np.maximum(np.sqrt(variance), adafactor.EPSILON1)
        rate = max(1e-3, float(np.sqrt(np.mean(parameter**2)))) * min(0.01, step**-0.5)
        return -rate * update / max(1.0, np.sqrt(np.mean(update**2)))

    monkeypatch.setattr(adafactor, "formula", means)
    assert holds("torch-adafactor-means", "small")


def test_the_variance_of_squares_of_rank_one_is_exact() -> None:
    """Adafactor's factorization reproduces a matrix of rank 1, so the step is the sign of the gradient."""
    gradient = np.outer([1.0, 2.0, 3.0], [0.5, -1.0])
    factors = adafactor._moments(gradient, (np.zeros((3, 1)), np.zeros((1, 2))), 1)
    step = adafactor.formula(np.ones((3, 2)), gradient, factors, 1)
    np.testing.assert_allclose(step, -0.01 * np.sign(gradient), rtol=1e-12)
