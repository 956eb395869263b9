"""Tests of the sign-flip test, and of the interval of a ratio over pairs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.statistics.flips import MOST_EXACT, flip_p_value, ratio_interval
from suite.statistics.paired import Grid, compare_methods, find_differences, tabulate_values
from suite.statistics.summary import Observation

pytestmark = pytest.mark.quick

DIFFERENCES = st.lists(st.integers(-40, 40).map(lambda number: number / 16), min_size=2, max_size=8)


def row(*spent, budget=None, every=1):
    """Crossings of the seeds 0, 1, …; None: missed within the budget."""
    return {
        seed: Observation(budget, False) if steps is None else Observation(steps, True, max(1, steps - every + 1))
        for seed, steps in enumerate(spent)
    }


# -------------------------------------------------------------------------------------------------------------- flips
@given(DIFFERENCES)
def test_p_value_is_that_of_scipy(differences):
    expected = stats.permutation_test(
        (np.array(differences),), np.sum, permutation_type="samples", alternative="less", n_resamples=np.inf
    )
    assert flip_p_value(differences) == pytest.approx(expected.pvalue)


@given(DIFFERENCES, st.integers(0, 7), st.floats(0, 5))
def test_p_value_falls_with_each_difference(differences, index, less):
    lower = list(differences)
    lower[index % len(lower)] -= less
    assert flip_p_value(lower) <= flip_p_value(differences)


@given(DIFFERENCES, st.integers(-3, 3))
def test_p_value_does_not_depend_on_the_unit_or_on_rounding_errors(differences, power):
    scaled = [2.0**power * value for value in differences]
    shaken = [value + 1e-12 * (-1) ** seed for seed, value in enumerate(differences)]
    assert flip_p_value(scaled) == flip_p_value(differences) == flip_p_value(shaken)


@pytest.mark.parametrize("n", [1, 5, 10, MOST_EXACT])
def test_least_p_value_is_one_of_all_signs(n):
    assert flip_p_value([-1.0 - seed for seed in range(n)]) == 2.0**-n


def test_tied_pairs_count_for_neither_row():
    assert flip_p_value([-1.0, -2.0, -3.0, 0.0, 0.0]) == flip_p_value([-1.0, -2.0, -3.0]) == 1 / 8
    assert flip_p_value([0.0] * 6) == 1


def test_many_differences_use_drawn_signs():
    rng = np.random.default_rng(0)
    values = rng.normal(-0.1, 1, 25)
    exact = stats.norm.cdf(values.sum() / math.sqrt((values**2).sum()))
    assert flip_p_value(values) == pytest.approx(exact, abs=0.02)
    assert flip_p_value([-1.0] * 40) == 2.0**-MOST_EXACT


# ----------------------------------------------------------------------------------------------------------- interval
@pytest.mark.parametrize("n", [6, 8, 10])
def test_interval_has_the_ratios_that_no_test_rejects(n):
    differences = np.random.default_rng(n).normal(0.3, 0.2, n)
    ratio = ratio_interval(differences, differences)
    shifts = np.linspace(-1, 2, 1501)
    kept = [s for s in shifts if min(flip_p_value(differences - s), flip_p_value(s - differences)) > 0.025]
    assert math.log(ratio.low) == pytest.approx(kept[0], abs=0.003)
    assert math.log(ratio.high) == pytest.approx(kept[-1], abs=0.003)
    assert ratio.estimate == pytest.approx(math.exp(differences.mean()))


@pytest.mark.parametrize(("n", "coverage"), [(1, 0), (3, 0.75), (5, 0.9375), (6, 0.96875)])
def test_few_pairs_give_their_range_and_its_coverage(n, coverage):
    differences = [0.1 * seed for seed in range(n)]
    ratio = ratio_interval(differences, differences)
    assert (ratio.low, ratio.high, ratio.coverage) == pytest.approx((1, math.exp(0.1 * (n - 1)), coverage))
    assert not ratio.differs


def test_coverage_is_as_stated():
    rng = np.random.default_rng(1)
    inside = [
        (ratio := ratio_interval(values, values)).low <= 1 <= ratio.high for values in rng.normal(0, 1, (1000, 7))
    ]
    assert np.mean(inside) == pytest.approx(ratio.coverage, abs=0.02)


def test_no_pairs_have_no_ratio():
    ratio = ratio_interval([], [])
    assert (ratio.estimate, ratio.low, ratio.high, ratio.pairs) == (None, 0, math.inf, 0)


# --------------------------------------------------------------------------------------------------------------- pairs
def test_a_miss_counts_as_the_evaluation_after_the_smallest_budget():
    grid = Grid(budget=100, step=20)
    first = {"torch": row(40, None, 120, budget=100)}
    second = {"torch": row(80, None, 60, budget=300)}
    assert find_differences(first, second, grid) == pytest.approx({0: math.log(1 / 2), 1: 0, 2: math.log(120 / 60)})
    diverged = {"torch": {0: Observation(math.inf, False)}}
    assert find_differences(diverged, second, grid) == pytest.approx({0: math.log(120 / 80)})


def test_frameworks_of_a_seed_are_averaged_where_both_methods_ran():
    first = {"torch": row(100, 100), "jax": row(400)}
    second = {"torch": row(200, 200), "jax": row(200), "mlx": row(1)}
    assert find_differences(first, second, Grid(1000, 1)) == pytest.approx({0: 0, 1: math.log(1 / 2)})
    table = tabulate_values([first, second], ["torch", "jax"], [0, 1], Grid(1000, 1))
    assert table[0] == pytest.approx([math.log(200), math.log(200)]) and np.isnan(table[1]).all()


def test_midpoints_are_used_where_cells_are_at_most_two_spreads():
    spent, twice = (100, 140, 80, 120, 90, 130), (210, 190, 260, 170, 225, 240)
    exact = compare_methods({"": row(*spent)}, {"": row(*twice)})
    dense = compare_methods({"": row(*spent, every=10)}, {"": row(*twice, every=10)})
    assert (dense.low, dense.high) == pytest.approx((exact.low, exact.high), rel=0.06)
    assert (dense.low, dense.high) != (exact.low, exact.high)
    equal = compare_methods({"": row(*[100] * 6, every=20)}, {"": row(*[200] * 6, every=20)})
    assert (equal.low, equal.high) == pytest.approx((81 / 200, 100 / 181))  # the worst ends of the cells


def test_a_miss_leaves_a_lower_bound():
    ratio = compare_methods({"": row(None, None, 400, None, None, None, budget=400)}, {"": row(*[100] * 6)})
    assert (ratio.low, ratio.high, ratio.estimate) == (pytest.approx(4), math.inf, None)
    both = compare_methods({"": row(*[None] * 6, budget=400)}, {"": row(*[None] * 6, budget=400)})
    assert (both.low, both.high) == (0, math.inf)
    never = {"": {seed: Observation(math.inf, False) for seed in range(6)}}
    assert compare_methods(never, {"": row(*[100] * 6)}).low == math.inf
    assert compare_methods({"": row(*[100] * 6)}, never).high == 0


def test_two_runs_that_never_arrive_have_no_ratio():
    never = Observation(math.inf, False)
    first, second = {**row(*[200] * 6), 6: never, 7: never}, {**row(*[100] * 6), 6: never, 7: never}
    ratio = compare_methods({"": first}, {"": second})
    assert ratio.estimate is None and (ratio.low, ratio.high) == (0, math.inf)


def test_one_late_seed_does_not_make_cells_look_narrow():
    late = compare_methods({"": row(*[200] * 7, 600, every=40)}, {"": row(*[200] * 8, every=40)})
    assert late.low == pytest.approx(161 / 200) and late.high > 200 / 161


@given(st.permutations([100, 120, 140, 90, 130, 150]))
def test_order_of_seeds_changes_no_interval(spent):
    seeds = list(np.random.default_rng(0).permutation(6))
    first, second = row(*spent), row(*(steps + 7 * seed for seed, steps in enumerate(spent)))
    moved = compare_methods({"": {s: first[s] for s in seeds}}, {"": {s: second[s] for s in seeds}})
    assert moved == compare_methods({"": first}, {"": second}) and moved.pairs == 6
