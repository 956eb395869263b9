"""Tests for a number of seeds that was chosen in advance: equivalence within a margin, order, and families of tests.

A test of this module keeps its level alpha only if it is computed once, with a number of seeds that was fixed before
the first of them was seen. If seeds may be added after a look at the outcome, only `suite/statistics/sequential.py`
is valid; then `decide(values, -margin, margin)` takes the place of `equivalence`.

A test that does not reject shows nothing: "no difference was found" is not "there is none". Equivalence is therefore
tested against a stated margin (two one-sided tests; Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15
(1987)).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Equivalence:
    """The outcome of two one-sided tests.

    Attributes:
        p_value: the larger of the two.
        low: lower bound of the interval with coverage 1 − 2·alpha.
        high: upper bound.
        equivalent: whether the interval lies between the bounds of the margin, which is the same as p_value < alpha.
    """

    p_value: float
    low: float
    high: float
    equivalent: bool


def equivalence(
    values: Sequence[float], low: float, high: float, alpha: float = 0.05, *, other: Sequence[float] | None = None
) -> Equivalence:
    """Test whether a mean, or the difference of two means, lies between two bounds.

    Args:
        values: one per seed, at least two; for two methods with the same seeds, the differences.
        low: lower bound of the margin.
        high: upper bound.
        alpha: probability to find equivalence although the mean lies outside.
        other: values of a second, independent sample; then the mean of `values` minus the mean of `other` is tested,
            and the two may have different variances (Welch).

    Raises:
        ValueError: if a sample has fewer than two values, equal values, or the bounds are not ordered.
    """
    from scipy import stats

    samples = [np.asarray(sample, dtype=float) for sample in (values, other) if sample is not None]
    _check(samples)
    if not low < high:
        raise ValueError(f"the margin {low:g} to {high:g} is empty")
    first = samples[0]
    if other is None:
        tests = [
            stats.ttest_1samp(first, low, alternative="greater"),
            stats.ttest_1samp(first, high, alternative="less"),
        ]
        interval = stats.ttest_1samp(first, 0.0).confidence_interval(1 - 2 * alpha)
    else:
        second = samples[1]
        tests = [
            stats.ttest_ind(first - low, second, equal_var=False, alternative="greater"),
            stats.ttest_ind(first - high, second, equal_var=False, alternative="less"),
        ]
        interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(1 - 2 * alpha)
    p_value = max(_p_value(test) for test in tests)
    return Equivalence(p_value, float(interval.low), float(interval.high), p_value < alpha)


def faster(a: Sequence[float], b: Sequence[float], *, ratio: float = 1.0, paired: bool = True) -> float:
    """Test whether the first of two methods needs less than `ratio` times the steps (or seconds) of the second.

    The hypothesis that is tested is that the geometric mean of a / b is `ratio` or more. The logarithms are taken as
    Gaussian. A missed target has no logarithm; use `suite.statistics.survival.same_times`, or the sequential median.

    Args:
        a: positive values of the first method, one per seed.
        b: of the second; if paired, of the same seeds.
        ratio: 1 tests the order; 0.8 tests whether at least a fifth is saved.
        paired: whether the i-th values belong to the same seed.

    Returns:
        The one-sided p value.

    Raises:
        ValueError: if a value is not positive and finite, or a sample is too small or constant.
    """
    from scipy import stats

    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if not all((sample > 0).all() and np.isfinite(sample).all() for sample in (first, second)):
        raise ValueError("a ratio needs positive, finite values")
    first, second = np.log(first / ratio), np.log(second)
    if paired:
        _check([first - second])
        return _p_value(stats.ttest_1samp(first - second, 0.0, alternative="less"))
    _check([first, second])
    return _p_value(stats.ttest_ind(first, second, equal_var=False, alternative="less"))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of a family of tests (Holm, Scandinavian Journal of Statistics 6 (1979)).

    If every test whose adjusted value is at most alpha is rejected, the probability of one or more false rejections
    in the family is at most alpha, however the tests depend on each other. The p values must be of tests with a fixed
    number of seeds.

    Returns:
        The adjusted values, in the order of the arguments.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _p_value(test: object) -> float:
    """The second item of a result of scipy, whose attributes type checkers do not know."""
    return float(np.asarray(test)[1])


def _check(samples: Sequence[np.ndarray]) -> None:
    if any(len(sample) < 2 for sample in samples):
        raise ValueError("a test needs at least two values of each sample")
    if all(np.ptp(sample) <= 1e-12 * np.abs(sample).max() for sample in samples):
        raise ValueError("all values are equal, so their spread is unknown; more seeds or finer evaluations are needed")
