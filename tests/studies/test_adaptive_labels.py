"""Tests of the least-squares problem on which Adam errs."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import adaptive_labels


def test_the_construction_meets_the_condition_of_the_lemma() -> None:
    """X sign(X'y) = c y for one c: here 4 = 3 + 1 if y = 1, and -4 = 1 - 5 if y = -1."""
    labels = np.array([1.0, -1.0, 1.0])
    data = adaptive_labels.build_data(labels)
    np.testing.assert_array_equal(data @ np.sign(data.T @ labels), 4 * labels)


def test_gradient_descent_separates_and_adam_errs_on_the_rarer_label() -> None:
    assert holds("wilson2017-separable", "gradient", 1) and holds("wilson2017-separable", "adam", 1)
    assert adaptive_labels.measure(1, method="adam", samples=40, positive=0.7, steps=2000) == pytest.approx(0.3)
