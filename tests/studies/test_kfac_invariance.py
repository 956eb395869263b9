"""K-FAC's invariance."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import kfac_invariance


def _network() -> tuple[list[np.ndarray], tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    weights = [random.standard_normal((7, 6)), random.standard_normal((4, 8))]
    maps = tuple(np.eye(size) + random.standard_normal((size, size)) / size for size in (6, 7, 8, 4))
    return weights, maps, random.standard_normal((5, 9)), random.standard_normal((4, 9))


def test_the_gradient_equals_finite_differences_of_the_loss() -> None:
    weights, maps, inputs, targets = _network()

    def loss(changed: list[np.ndarray]) -> float:
        residual = kfac_invariance._forward(changed, maps, inputs)[-1] - targets
        return float(np.sum(residual**2)) / 2 / inputs.shape[1]

    updated = kfac_invariance._update(weights, maps, inputs, targets, "sgd", 0.0, 1.0)
    for layer, (row, column) in ((0, (2, 3)), (0, (6, 5)), (1, (1, 7))):
        step = np.zeros_like(weights[layer])
        step[row, column] = 1e-6
        up, down = ([w + sign * step if i == layer else w for i, w in enumerate(weights)] for sign in (1, -1))
        expected = (loss(up) - loss(down)) / 2e-6
        assert weights[layer][row, column] - updated[layer][row, column] == pytest.approx(expected, rel=1e-5)


def test_the_last_layer_without_a_transformation_is_solved_by_least_squares_in_one_update() -> None:
    """A full step solves the last layer: the output is linear in it, and A (x) G is the exact Fisher matrix there."""
    weights, _, inputs, targets = _network()
    maps = (np.eye(6), np.eye(7), np.eye(8), np.eye(4))
    updated = kfac_invariance._update(weights, maps, inputs, targets, "kfac", 0.0, 1.0)
    features = kfac_invariance._forward(weights, maps, inputs)[1]
    expected = np.linalg.lstsq(features.T, targets.T, rcond=None)[0].T
    np.testing.assert_allclose(updated[1], expected, rtol=1e-6)


def test_invariance_holds_without_damping_and_needs_its_condition() -> None:
    for seed in range(3):
        for name in ("undamped", "damped", "sgd"):
            assert holds("martens2015-kfac-invariance", name, seed), (name, seed)


def test_damping_changes_the_verdict() -> None:
    assert kfac_invariance.measure(0, damping=1e-4) > 1e-6
