"""Summaries over seeds: hit rates, medians and their intervals."""

import math

import numpy
import pytest
from scipy import stats

from suite.statistics.summary import Observation, median_interval, summarize_seeds, wilson_interval

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(8, 10, 0.4902, 0.9433), (0, 5, 0.0, 0.4345), (5, 5, 0.5655, 1.0)]
)
def test_wilson_interval_of_known_cases(hits, n, low, high):
    assert wilson_interval(hits, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    [(1, 1, 1, 0.0), (3, 1, 3, 0.75), (5, 1, 5, 0.9375), (8, 1, 8, 0.9922), (9, 2, 8, 0.9609375), (12, 3, 10, 0.9614)],
)
def test_median_interval_takes_the_tabulated_order_statistics(n, low, high, coverage):
    assert median_interval(range(n, 0, -1)) == pytest.approx((low, high, coverage), abs=5e-5)


def test_median_interval_covers_what_it_says():
    draws = numpy.random.default_rng(0).exponential(size=(4000, 9))  # median log 2
    holds = [low <= math.log(2) <= high for low, high, _ in map(median_interval, draws)]
    assert numpy.mean(holds) == pytest.approx(0.961, abs=0.01)


def seeds(*hits, misses=()):
    return [*(Observation(spent, True) for spent in hits), *(Observation(spent, False) for spent in misses)]


def test_a_minority_of_misses_leaves_a_median():
    summary = summarize_seeds(seeds(10, 20, 30, misses=[50]))
    assert (summary.n, summary.hits, summary.median, summary.beyond) == (4, 3, 25, None)
    assert (summary.low, summary.high) == (10, None)


@pytest.mark.parametrize(
    ("observations", "beyond"),
    [
        (seeds(10, misses=[50]), 50),
        (seeds(10, misses=[70, 50]), 50),
        (seeds(10, misses=[math.inf, 60]), 60),
        (seeds(misses=[math.inf]), None),
    ],
)
def test_half_or_more_misses_leave_only_a_bound(observations, beyond):
    summary = summarize_seeds(observations)
    assert (summary.median, summary.beyond) == (None, beyond)


@pytest.mark.parametrize("hits", range(8))
def test_wilson_interval_agrees_with_scipy(hits):
    assert wilson_interval(hits, 7) == pytest.approx(stats.binomtest(hits, 7).proportion_ci(0.95, "wilson"), abs=1e-12)


@pytest.mark.parametrize("n", [6, 9, 12, 20])
def test_median_interval_agrees_with_scipy(n):
    values = numpy.random.default_rng(n).normal(size=n)
    low, high, _ = median_interval(values)
    assert (low, high) == tuple(stats.quantile_test(values).confidence_interval(0.95))
