"""Losses of rare and frequent classes."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import imbalance_rates


def test_sign_descent_has_the_closed_form_of_its_trajectory() -> None:
    frequencies = np.array([0.6, 0.3, 0.1])
    expected = np.log1p(2 * np.exp(-2 * 3.0))
    np.testing.assert_allclose(imbalance_rates.losses(frequencies, "sign", 3.0, 0.01), expected, rtol=1e-9)


def test_gradient_flow_equals_the_integral_of_scipy() -> None:
    """Class k's margin u obeys u' = pi c / (exp(u) + c - 1), for c classes and W = 0 at the start."""
    from scipy import integrate

    frequencies = np.array([0.6, 0.3, 0.1])
    measured = imbalance_rates.losses(frequencies, "gradient", 50.0, 0.001)
    for frequency, loss in zip(frequencies, measured, strict=True):
        margin = integrate.solve_ivp(
            lambda _, u, share=frequency: share * 3 / (np.exp(u) + 2), (0, 50), [0.0], rtol=1e-9, atol=1e-12
        ).y[0, -1]
        assert loss == pytest.approx(np.log1p(2 * np.exp(-margin)), rel=1e-3)


def test_the_rates_of_gradient_flow_and_the_independence_of_sign_descent_hold() -> None:
    assert holds("kunstner2024-imbalance-gradient", "exponent") and holds("kunstner2024-imbalance-gradient", "spread")
    assert holds("kunstner2024-imbalance-sign", "spread")


def test_the_loss_of_sign_descent_falls_at_a_rate_of_two_whatever_the_classes() -> None:
    """Losses are log(1 + (c - 1) exp(-2 t)). Theorem 3 is quoted with a rate of c; the paper itself was not read."""
    for classes in (2, 10):
        assert imbalance_rates.measure(0, method="sign", quantity="rate", classes=classes) == pytest.approx(2, rel=1e-3)


def test_sign_descent_in_place_of_the_gradient_changes_the_verdict() -> None:
    assert not -1.05 < imbalance_rates.measure(0, method="sign", quantity="exponent") < -0.95
    assert imbalance_rates.measure(0, method="sign", quantity="spread") < 9.5
