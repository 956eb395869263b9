"""`find_difference` names the first array that differs, and says how."""

import re

import numpy as np
import pytest

from suite.differences import Arrays, find_difference, measure_difference

ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)
pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "expected, found, tolerance, words",
    [
        ({"a": ONES}, {"a": ONES.copy()}, 0.0, None),
        ({"a": ONES, "b": ONES}, {"b": ONES}, 0.0, "a is missing"),
        ({"a": ONES}, {"a": ONES, "b": ONES}, 0.0, "b is not expected"),
        ({"a": ONES}, {"a": ONES[:2]}, 1.0, r"a is float32\[2\] instead of float32\[4\]"),
        ({"a": ONES}, {"a": ONES.astype(np.float64)}, 1.0, r"a is float64\[4\] instead of float32\[4\]"),
        ({"a": ONES, "b": ONES, "c": ONES}, {"a": ONES, "b": ZEROS, "c": ZEROS}, 1e-4, "b differs by 1 of its norm"),
        ({"a": ZEROS}, {"a": ONES}, 1e-4, "a differs by 2 from 0"),
        ({"a": ONES}, {"a": ONES + 1e-6}, 0.0, "a differs by .*e-0[67] of its norm"),
        ({"a": ONES}, {"a": ONES + 1e-6}, 1e-4, None),
        ({"a": ONES, "bias": ZEROS + 1e-9}, {"a": ONES, "bias": ZEROS - 1e-9}, 1e-4, None),
        ({"a": ONES, "bias": ZEROS + 1e-6}, {"a": ONES, "bias": ZEROS - 1e-6}, 1e-4, "bias differs by 2 of its norm"),
        ({"a": ONES * np.nan}, {"a": ONES * np.nan}, 0.0, None),
        ({"a": ONES * np.inf}, {"a": ONES * np.inf}, 0.0, None),
        ({"a": ONES}, {"a": ONES * np.nan}, 1.0, "a differs by nan of its norm"),
        ({"a": ONES * np.inf}, {"a": -ONES * np.inf}, 1.0, "a differs by inf from 0"),
        ({"a": ONES + 1j}, {"a": ONES - 1j}, 1e-4, "a differs by 1.4 of its norm"),
        ({"a": np.array([True])}, {"a": np.array([False])}, 1e-4, "a differs by 1 of its norm"),
        ({"a": np.array(2**62)}, {"a": np.array(2**62 + 1)}, 0.0, "a differs by .* of its norm"),
    ],
)
def test_the_first_difference_is_named(expected: Arrays, found: Arrays, tolerance: float, words: str | None) -> None:
    said = find_difference(expected, found, tolerance)
    assert said is None if words is None else said is not None and re.fullmatch(words, said)


def test_the_largest_difference_is_a_share_of_the_largest_norm() -> None:
    assert measure_difference({"a": ONES, "b": ZEROS}, {"a": ONES * 1.5, "b": ZEROS}) == 0.5
    assert measure_difference({"a": ZEROS}, {"a": ZEROS}) == measure_difference({}, {}) == 0.0
