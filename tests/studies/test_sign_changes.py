"""Tests of the share of a gradient's entries that change sign under Shampoo's preconditioning."""

import numpy as np
import pytest
from scipy import linalg

from suite.studies import sign_changes


def test_one_gradient_alone_keeps_its_signs() -> None:
    """L and R of one gradient have its singular vectors, so only its singular values change: U S^(1 - 1/2 - 1/2) V'."""
    gradient = np.outer(np.arange(1.0, 5.0), [1.0, -2.0, 3.0])
    assert sign_changes.changes(gradient, gradient @ gradient.T, gradient.T @ gradient) == 0


def test_changes_are_counted_as_scipy_computes_the_roots() -> None:
    rng = np.random.default_rng(0)
    left, right = (part @ part.T for part in (rng.standard_normal((8, 9)), rng.standard_normal((6, 7))))
    gradient = rng.standard_normal((8, 6))
    roots = [linalg.fractional_matrix_power(matrix, -0.25) for matrix in (left, right)]
    expected = int((np.sign(roots[0] @ gradient @ roots[1]) != np.sign(gradient)).sum())
    assert sign_changes.changes(gradient, left, right) == expected > 0


def test_the_share_is_between_the_counts_of_the_matrices() -> None:
    pytest.importorskip("torch")
    value = sign_changes.measure(0, steps=2)
    assert 0.0 < value < 0.5 and value == sign_changes.measure(0, steps=2)
