"""Times to a target with misses."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.statistics.summary import Observation, summarize
from suite.statistics.survival import curve, median_time, restricted_mean, same_times

SEEDS = [Observation(6, True), *[Observation(6, True)] * 2, Observation(6, False), Observation(7, True)]
SEEDS += [Observation(9, False), Observation(10, True), Observation(10, False), Observation(11, False)]
SEEDS += [Observation(13, True), Observation(16, True), Observation(17, False), Observation(19, False)]
SEEDS += [Observation(20, False), Observation(22, True), Observation(23, True), Observation(25, False)]
SEEDS += [Observation(32, False)] * 2 + [Observation(34, False), Observation(35, False)]


def product_limit(observations):
    """The estimate by its definition: the product of 1 − crossings / seeds at risk."""
    share, points = 1.0, {}
    for time in sorted({seed.spent for seed in observations}):
        at_risk = sum(seed.spent >= time for seed in observations)
        share *= 1 - sum(seed.reached and seed.spent == time for seed in observations) / at_risk
        points[time] = share
    return points


def observations():
    return st.lists(st.builds(Observation, st.integers(1, 30).map(float), st.booleans()), min_size=1, max_size=15)


@given(observations())
def test_curve_is_the_product_limit(seeds):
    estimated = curve(seeds)
    expected = product_limit(seeds)
    assert dict(zip(estimated.times, estimated.shares, strict=True)) == pytest.approx(expected)
    for low, share, high in zip(estimated.lows, estimated.shares, estimated.highs, strict=True):
        assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1


def test_bounds_are_those_of_the_log_log_formula():
    """After the crossings at 6 (3 of 21), Greenwood's variance is 3 / (21·18)."""
    estimated = curve(SEEDS)
    share = 18 / 21
    error = 1.959964 * math.sqrt(3 / (21 * 18)) / math.log(share)
    low, high = share ** math.exp(-error), share ** math.exp(error)
    assert (estimated.lows[0], estimated.highs[0]) == pytest.approx((min(low, high), max(low, high)), abs=1e-6)


def test_median_of_many_misses_is_that_of_the_curve():
    estimate = median_time(SEEDS)
    assert estimate.time == 23
    assert estimate.low == 13 and estimate.high is None


def test_median_without_misses_is_a_middle_value():
    values = [3.0, 8.0, 1.0, 9.0, 4.0, 7.0, 2.0]
    estimate = median_time([Observation(value, True) for value in values])
    assert estimate.time == 4
    assert estimate.low is not None and estimate.low < 4
    three = [Observation(value, True) for value in (1.0, 2.0, 3.0)]
    assert curve(three).highs[1] > 0.5 and curve(three).highs[2] == curve(three).highs[1]
    assert median_time(three).high is None


def test_diverged_runs_never_cross():
    seeds = [Observation(10, True), Observation(20, True), Observation(math.inf, False), Observation(math.inf, False)]
    assert curve(seeds).shares[-1] == pytest.approx(0.5)
    assert median_time(seeds).time == 20
    assert median_time([*seeds, Observation(math.inf, False)]).time is None


def test_median_uses_misses_with_smaller_budgets_unlike_the_summary():
    """A run that was stopped after 5 says nothing about 40; the summary ranks it last."""
    seeds = [Observation(5, False)] * 3 + [Observation(steps, True) for steps in (10.0, 20.0, 30.0, 40.0)]
    assert median_time(seeds).time == 20
    assert summarize(seeds).median == 40


def test_equal_rows_are_not_told_apart_and_distant_ones_are():
    early, late = (
        [Observation(float(t), True) for t in range(10, 20)],
        [Observation(float(t), True) for t in range(60, 70)],
    )
    assert same_times(early, early) > 0.9
    assert same_times(early, late) < 1e-4
    assert same_times(early, [Observation(100.0, False)] * 10) < 1e-4


def test_log_rank_p_values_of_equal_rows_are_uniform():
    rng = np.random.default_rng(1)
    p_values = []
    for _ in range(400):
        draws = rng.exponential(100, size=(2, 12))
        rows = [[Observation(min(t, 150.0), t < 150) for t in sample] for sample in draws]
        p_values.append(same_times(*rows))
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


def test_nothing_reached_cannot_be_compared():
    with pytest.raises(ValueError, match="no seed reached the target"):
        same_times([Observation(5.0, False)], [Observation(6.0, False)])


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12), st.integers(1, 60))
def test_restricted_mean_without_misses_is_the_mean_of_cut_times(times, budget):
    estimate = restricted_mean([Observation(float(time), True) for time in times], budget)
    cut = np.minimum(times, budget)
    assert estimate.time == pytest.approx(cut.mean())
    error = cut.std() / math.sqrt(len(cut))  # Greenwood's formula without misses
    assert estimate.low == pytest.approx(max(0, cut.mean() - 1.959964 * error), abs=1e-4)
    assert estimate.high == pytest.approx(min(budget, cut.mean() + 1.959964 * error), abs=1e-4)


def test_restricted_mean_recovers_the_truth_from_censored_times():
    rng = np.random.default_rng(0)
    covered, estimates = 0, []
    truth = 100 * (1 - math.exp(-0.8))  # of an exponential time with mean 100, cut at 80
    for _ in range(300):
        times, budgets = rng.exponential(100, 40), rng.uniform(80, 300, 40)
        seeds = [Observation(min(t, b), bool(t < b)) for t, b in zip(times, budgets, strict=True)]
        estimate = restricted_mean(seeds, 80)
        estimates.append(estimate.time)
        covered += estimate.low <= truth <= estimate.high
    assert np.mean(estimates) == pytest.approx(truth, rel=0.02)
    assert covered / 300 == pytest.approx(0.95, abs=0.04)


@pytest.mark.parametrize(("budget", "message"), [(0, "positive"), (math.inf, "finite"), (99, "later than the last")])
def test_unusable_budgets_are_named(budget, message):
    with pytest.raises(ValueError, match=message):
        restricted_mean([Observation(10.0, True), Observation(20.0, False)], budget)
