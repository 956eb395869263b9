"""Tests of the heavy-ball method's cycle."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import heavy_ball


def test_the_gradient_is_continuous_and_its_slopes_are_1_and_25() -> None:
    points = np.linspace(-4, 4, 8001)
    slopes = np.diff([heavy_ball.gradient(x) for x in points]) / np.diff(points)
    assert slopes.min() == pytest.approx(1, rel=1e-9) and slopes.max() == pytest.approx(25, rel=1e-9)


def test_the_cycle_is_a_fixed_point_of_three_steps_solved_as_linear_equations() -> None:
    """Of the three points of the cycle one is at least 2 and two are below 1; linear equations then give them."""
    slopes, offsets = np.array([25.0, 25.0, 25.0]), np.array([-24.0, 0.0, 0.0])
    shift = np.roll(np.eye(3), 1, axis=0)  # shift @ x: the point before each
    # x_(k+1) = x_k - (slope x_k + offset) / 9 + 4/9 (x_k - x_(k-1))
    system = np.linalg.inv(shift) - np.eye(3) + np.diag(slopes) / 9 - 4 / 9 * (np.eye(3) - shift)
    points = np.linalg.solve(system, -offsets / 9)
    assert points[0] >= 2 and points[1] < 1 and points[2] < 1
    assert heavy_ball.measure(0) == pytest.approx(np.abs(points).min(), rel=1e-9)


def test_the_method_cycles_and_the_gradient_method_converges() -> None:
    assert all(holds("lessard2016-heavy-ball-cycle", "cycle", seed) for seed in range(10))
    assert holds("lessard2016-heavy-ball-cycle", "gradient")


def test_on_a_quadratic_the_verdict_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavy_ball, "gradient", lambda x: 25 * x)
    assert not holds("lessard2016-heavy-ball-cycle", "cycle")
