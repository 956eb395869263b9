"""Shampoo: its equivalence with Adafactor, and the bits that roots lose."""

from fractions import Fraction

import numpy as np
import pytest
from claimed import holds

from suite.studies import root_bits, shampoo_eigenbasis


def test_shampoo_equals_adafactor_in_its_eigenbasis_only_with_averages() -> None:
    for seed in range(3):
        assert holds("vyas2025-shampoo-is-adafactor", "idealized", seed)
        assert holds("vyas2025-shampoo-is-adafactor", "one-gradient", seed)


def test_power_one_quarter_changes_the_verdict() -> None:
    assert shampoo_eigenbasis.measure(0, power=0.25) > 1e-6


def test_the_root_of_shampoo_equals_the_one_of_scipy() -> None:
    from scipy import linalg

    matrix = np.random.default_rng(0).standard_normal((6, 20))
    matrix = matrix @ matrix.T
    expected = linalg.fractional_matrix_power(matrix, -0.5)
    np.testing.assert_allclose(shampoo_eigenbasis._root(matrix, 0.5), expected, rtol=1e-9)
    expected = linalg.fractional_matrix_power(matrix, -0.25)
    np.testing.assert_allclose(root_bits.inverse_root(matrix, 4), expected, rtol=1e-9)


def test_the_formula_lies_between_powers_of_two() -> None:
    """2^17 < 10^6 / 4 < 2^18, so the formula cannot give 19."""
    kappa = Fraction(10**6, 4)
    assert 2**17 < kappa < 2**18
    assert 17 < root_bits.measure(0, quantity="formula") < 18


def test_the_worst_change_loses_the_bits_of_the_derivative() -> None:
    """A change is kappa 2^-24 relative to x; the relative derivative of x^(-1/p) is 1 / (p x)."""
    for order, condition in ((2, 1e3), (4, 1e4), (8, 1e5)):
        lost = root_bits.measure(0, quantity="worst", order=order, condition=condition)
        assert lost == pytest.approx(np.log2(condition / order), abs=0.02)


def test_19_bits_follow_from_neither_formula_nor_measurement() -> None:
    assert not holds("anil2021-shampoo-19-bits", "formula") and not holds("anil2021-shampoo-19-bits", "computed")
    assert holds("anil2021-shampoo-bits-rule", "worst") and holds("anil2021-shampoo-bits-rule", "worst-square")


def test_another_order_changes_the_verdict() -> None:
    assert 18.5 < root_bits.measure(0, quantity="formula", order=2) < 19.5
