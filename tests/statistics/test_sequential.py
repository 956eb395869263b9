"""Intervals and decisions that stay valid while seeds are added."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from suite.statistics import evidence, sequential
from suite.statistics.evidence import critical_count, critical_t, one_sided_evidence, sign_evidence, t_evidence
from suite.statistics.sequential import (
    Interval,
    decide,
    find_least_seeds,
    mean_interval,
    median_interval_sequential,
)

pytestmark = pytest.mark.quick

VALUES = st.lists(st.integers(1, 10_000).map(lambda number: number / 64), min_size=3, max_size=12)


# --------------------------------------------------------------------------------------------------------------- mean
def test_evidence_is_the_likelihood_ratio_of_the_values_up_to_scale():
    """Evidence agrees with the integral over effect size and scale (with density 1/scale) on a fine grid."""
    values = np.array([0.3, 1.1, 0.7, 1.6])
    effects = np.linspace(-40, 40, 4001)
    logs = np.linspace(-6, 6, 1201)  # of the scale; the density 1/scale is constant in it

    def likelihood(effect):
        scale = np.exp(logs)
        return integrate.trapezoid(np.prod(stats.norm.pdf(values[:, None], effect * scale, scale), axis=0), logs)

    weights = stats.norm.pdf(effects, 0, math.sqrt(evidence.MIXTURE_VARIANCE))
    mixture = integrate.trapezoid([likelihood(effect) for effect in effects] * weights, effects)
    t = stats.ttest_1samp(values, 0).statistic
    assert t_evidence(t, 4) == pytest.approx(mixture / likelihood(0.0), rel=1e-6)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_expected_evidence_is_one_if_the_mean_is_the_hypothesis(n):
    expected, _ = integrate.quad(lambda t: t_evidence(t, n) * stats.t.pdf(t, n - 1), -np.inf, np.inf, limit=500)
    assert expected == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("n", "t"), [(2, 3.0), (3, -2.0), (5, 4.0), (12, 2.5)])
def test_one_sided_evidence_averages_over_positive_effects(n, t):
    def likelihood_ratio(effect):
        density = stats.norm.pdf(effect, 0, math.sqrt(evidence.MIXTURE_VARIANCE))
        return 2 * density * stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) / stats.t.pdf(t, n - 1)

    expected, _ = integrate.quad(likelihood_ratio, 0, 40, limit=400, points=[0.5, 1, 2, 5])
    assert one_sided_evidence(t, n) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.05 / 9])
@pytest.mark.parametrize("n", [3, 4, 5, 10, 30])
def test_evidence_reaches_its_threshold_at_the_critical_value(n, alpha):
    critical = critical_t(n, alpha)
    if math.isinf(critical):
        assert one_sided_evidence(1e9, n) < 1 / alpha
    else:
        assert one_sided_evidence(critical, n) == pytest.approx(1 / alpha)
        assert critical > stats.t.ppf(1 - alpha, n - 1)


def test_table_of_critical_values_is_the_one_in_the_docstring():
    rows = {line.split()[0]: line.split()[2:] for line in critical_t.__doc__.splitlines() if "  " in line.strip()}
    counts = [2, 3, 4, 5, 6, 8, 10, 15, 20, 30]
    assert [f"{critical_t(n):.2f}".replace("inf", "∞") for n in counts] == rows["any"]
    assert [f"{stats.t.ppf(0.95, n - 1):.2f}" for n in counts] == rows["one"]


def test_three_seeds_could_never_decide_with_a_mixture_of_unit_variance(monkeypatch):
    critical = evidence.critical_t.__wrapped__  # without its cache
    assert math.isfinite(critical(3))
    monkeypatch.setattr(evidence, "MIXTURE_VARIANCE", 1.0)
    assert math.isinf(critical(3))


def test_interval_of_the_mean_contains_it_at_every_look():
    draws = np.random.default_rng(0).normal(7, 2, size=(2000, 25))
    ever = 0
    for values in draws:
        intervals = (mean_interval(values[:n]) for n in range(2, 26))
        ever += any(not interval.low <= 7 <= interval.high for interval in intervals)
    assert 0.005 < ever / len(draws) < 0.05


@given(VALUES, st.sampled_from([0.5, 2.0, 1024.0]), st.integers(-100, 100))
def test_interval_of_the_mean_follows_scale_and_shift(values, scale, shift):
    assume(np.ptp(values) > 0)
    interval = mean_interval(values)
    moved = mean_interval([scale * value + shift for value in values])
    size = 1e-9 * (abs(moved.low) + abs(moved.high))
    assert moved.low == pytest.approx(scale * interval.low + shift, abs=size)
    assert moved.high == pytest.approx(scale * interval.high + shift, abs=size)


@given(VALUES, st.randoms(use_true_random=False))
def test_order_of_values_does_not_matter(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = mean_interval(values), mean_interval(shuffled)
    if np.ptp(values) > 0:
        assert (second.low, second.high) == pytest.approx((first.low, first.high), rel=1e-9)
    assert median_interval_sequential(values) == median_interval_sequential(shuffled)


@given(VALUES, st.sampled_from(["mean", "median"]))
def test_intervals_widen_as_alpha_decreases(values, statistic):
    interval_of = {"mean": mean_interval, "median": median_interval_sequential}[statistic]
    wide, narrow = interval_of(values, 0.01), interval_of(values, 0.1)
    assert wide.low <= narrow.low <= narrow.high <= wide.high


def test_equal_values_exclude_nothing_without_a_resolution():
    assert mean_interval([200.0] * 9) == Interval(-math.inf, math.inf)
    assert mean_interval([0.1 + 0.2, 0.3, 0.3]) == Interval(-math.inf, math.inf)  # equal up to rounding errors
    interval = mean_interval([200.0] * 9, resolution=10)
    half = 5 + critical_t(9, 0.025) * 5 * math.sqrt(9 / 8) / 3
    assert (interval.low, interval.high) == pytest.approx((200 - half, 200 + half))


@given(st.lists(st.floats(0, 100), min_size=3, max_size=8), st.floats(0.5, 20))
def test_interval_of_rounded_values_contains_that_of_the_values(values, resolution):
    assume(np.ptp(values) > 1e-3)
    rounded = [resolution * round(value / resolution) for value in values]
    true, wide = mean_interval(values), mean_interval(rounded, resolution=resolution)
    assert wide.low <= true.low + 1e-9 and true.high <= wide.high + 1e-9


def test_mean_refuses_missed_targets():
    with pytest.raises(ValueError, match="use the median for missed targets"):
        mean_interval([1.0, math.inf, 2.0])


# ------------------------------------------------------------------------------------------------------------- median
def mixture(count: int, n: int) -> float:
    """Compute the mixture of bets of `critical_count` by numerical integration."""
    uniform, _ = integrate.quad(lambda p: 2 * (2 * p) ** count * (2 * (1 - p)) ** (n - count), 0.5, 1)
    return uniform / 2 + (2**n / 2 if count == n else 0)


@pytest.mark.parametrize("n", [1, 2, 7, 20, 61])
def test_sign_evidence_is_the_mixture_of_bets(n):
    by_count = dict(sign_evidence(n))
    assert list(by_count) == list(range(n, -1, -1))
    assert by_count == pytest.approx({count: mixture(count, n) for count in by_count}, rel=1e-7)


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.001])
@pytest.mark.parametrize("n", [1, 5, 6, 9, 20, 40, 100])
def test_sufficient_count_is_the_first_with_enough_evidence(n, alpha):
    enough = [count for count in range(n + 1) if mixture(count, n) >= 1 / alpha]
    counts = [count for count in enough if count > n / 2]
    assert critical_count(n, alpha) == (counts[0] if counts else None)
    assert counts == list(range(counts[0], n + 1)) if counts else True


def test_six_seeds_on_one_side_suffice_and_five_do_not():
    assert critical_count(6, 0.025) == 6 and critical_count(5, 0.025) is None


@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.025])
def test_probability_of_ever_excluding_the_median_is_at_most_alpha(alpha):
    """Exact: the distribution of the number of values above the median among paths that have not been excluded."""
    paths, excluded = np.array([1.0]), 0.0  # by number of values above
    for n in range(1, 301):
        paths = (np.append(paths, 0) + np.append(0, paths)) / 2
        count = critical_count(n, alpha)
        if count is not None:
            excluded += paths[count:].sum()
            paths[count:] = 0
    assert 0.3 * alpha < excluded <= alpha


@given(st.lists(st.integers(1, 100).map(float) | st.just(math.inf), min_size=6, max_size=25))
def test_interval_of_the_median_follows_increasing_maps(values):
    interval = median_interval_sequential(values)
    squared = median_interval_sequential([value**2 for value in values])
    assert squared.high == interval.high**2
    assert squared.low == interval.low**2
    assert interval.low <= sorted(values)[len(values) // 2] <= interval.high or len(values) % 2 == 0


def test_the_interval_of_the_median_spends_half_its_alpha_on_each_side():
    assert median_interval_sequential(range(1, 6)) == Interval(-math.inf, math.inf)
    assert median_interval_sequential(range(1, 7)) == Interval(1, 6)


def test_missed_targets_leave_the_median_without_an_upper_bound():
    values = [100.0, 110, 120, 130, 140, 150, math.inf, math.inf, math.inf]
    interval = median_interval_sequential(values)
    assert interval.low == 100 and math.isinf(interval.high)
    bounded = median_interval_sequential([*values[:6], 90, 90, 90], highs=values)
    assert bounded.low == 90 and math.isinf(bounded.high)


# ---------------------------------------------------------------------------------------------------------- decisions
@pytest.mark.parametrize(
    ("above", "below", "state"),
    [
        (None, 0.8, "inside"),
        (0.7, None, "outside"),
        (None, 0.52, "undecided"),
        (0.3, 0.8, "inside"),
        (0.51, 1, "undecided"),
    ],
)
def test_state_says_where_the_interval_lies(above, below, state):
    values = [0.50, 0.52, 0.49, 0.51]
    assert decide(values, above, below).state == state


def test_six_misses_contradict_a_claim_about_the_median():
    decision = decide([math.inf] * 6, None, 500.0, "median")
    assert decision.state == "outside" and decision.estimate == math.inf and decision.low == math.inf


def test_each_side_of_a_claim_has_all_of_the_error():
    """With one bound, only one of "inside" and "outside" can be wrong; with two, "outside" can err on two sides."""
    values = with_moments(5, 0.0, 1.0)
    edge = {alpha: critical_t(5, alpha) / math.sqrt(5) for alpha in (0.05, 0.025)}
    assert decide(values, None, 1.001 * edge[0.05]).state == "inside"
    assert decide(values, None, 0.999 * edge[0.05]).state == "undecided"
    assert decide(values, 1.001 * edge[0.05], None).state == "outside"
    assert decide(values, -1.001 * edge[0.05], 9).state == decide(values, -9, 1.001 * edge[0.05]).state == "inside"
    assert decide(values, 1.001 * edge[0.05], 9).state == "undecided"
    assert decide(values, 1.001 * edge[0.025], 9).state == "outside"


@pytest.mark.parametrize("statistic", ["mean", "median"])
@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.01])
def test_the_fewest_seeds_that_can_decide_do(statistic, alpha):
    least = find_least_seeds(statistic, alpha)
    clear = [100 + 1e-6 * seed for seed in range(least)]
    assert decide(clear, None, 1000.0, statistic, alpha).state == "inside"
    assert decide(clear[:-1], None, 1000.0, statistic, alpha).state == "undecided"


def test_one_seed_decides_nothing():
    assert decide([0.5], None, 0.8) == sequential.Decision("undecided", 0.5, -math.inf, math.inf, None)


def with_moments(n: int, mean: float, spread: float) -> list[float]:
    """Values with this mean and standard deviation."""
    values = np.arange(n, dtype=float)
    return list(mean + spread * (values - values.mean()) / values.std(ddof=1))


@pytest.mark.parametrize("bounds", [(None, 1.05), (1.05, None), (0.95, 1.05)])
@pytest.mark.parametrize("log", [False, True])
def test_as_many_seeds_as_needed_decide_the_mean(bounds, log):
    def values(n):
        numbers = with_moments(n, 0.0 if log else 1.0, 0.04)
        return [math.exp(number) for number in numbers] if log else numbers

    now = decide(values(4), *bounds, log=log)
    assert now.state == "undecided" and now.seeds_needed
    assert decide(values(4 + now.seeds_needed), *bounds, log=log).state != "undecided"
    assert decide(values(4 + now.seeds_needed - 1), *bounds, log=log).state == "undecided"


@pytest.mark.parametrize("bounds", [(None, 25.0), (25.0, None), (5.0, 25.0)])
def test_as_many_seeds_as_needed_decide_the_median(bounds):
    values = [10.0, 20.0, 20.0, 30.0]
    needed = decide(values, *bounds, "median").seeds_needed
    repeats = math.ceil((4 + needed) / 4)
    assert decide(values * repeats, *bounds, "median").state != "undecided"
    assert decide((values * repeats)[: 4 * (repeats - 2)], *bounds, "median").state == "undecided"


def test_estimate_on_a_bound_needs_no_finite_number_of_seeds():
    assert decide([0.7, 0.8, 0.9], None, 0.8).seeds_needed is None


@given(VALUES, st.floats(0.1, 100))
def test_logarithms_treat_a_ratio_and_its_inverse_alike(values, bound):
    assume(np.ptp(np.log(values)) > 1e-6)
    ratio = decide(values, None, bound, log=True)
    inverse = decide([1 / value for value in values], 1 / bound, None, log=True)
    assert inverse.estimate == pytest.approx(1 / ratio.estimate, rel=1e-9)
    assume(abs(math.log(ratio.high / bound)) > 1e-6 if math.isfinite(ratio.high) else True)
    assume(abs(math.log(ratio.low / bound)) > 1e-6 if ratio.low > 0 else True)
    assert (inverse.state, inverse.seeds_needed) == (ratio.state, ratio.seeds_needed)


@settings(max_examples=50)
@given(VALUES, st.floats(0.1, 200))
def test_stricter_levels_never_decide_more(values, bound):
    if decide(values, None, bound, alpha=0.1).state == "undecided":
        assert decide(values, None, bound, alpha=0.01).state == "undecided"


def test_resolution_widens_the_interval_of_the_median():
    values = [100.0] * 8
    assert decide(values, None, 104.0, "median").state == "inside"
    assert decide(values, None, 104.0, "median", resolution=10).state == "undecided"
    assert decide(values, None, 106.0, "median", resolution=10).state == "inside"


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        ([], {"above": 1, "below": None}, "no values"),
        ([1.0], {"above": None, "below": None}, "state above"),
        ([1.0, math.nan], {"above": 1, "below": None}, "not a number"),
        ([1.0, -1.0], {"above": 1, "below": None, "log": True}, "positive values"),
    ],
)
def test_unusable_arguments_are_named(values, arguments, message):
    with pytest.raises(ValueError, match=message):
        decide(values, **arguments)
