"""Separation of two rows, and the leader of several."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.statistics.leaders import find_leader, find_separation, tied_with_leader
from suite.statistics.sequential import mean_interval
from suite.statistics.summary import Observation

pytestmark = pytest.mark.quick


def row(*spent: float, first: int = 0, missed: tuple[int, ...] = ()) -> dict[int, Observation]:
    """Seeds first, first + 1, … with these steps; `missed` are the seeds without a crossing."""
    return {seed: Observation(steps, seed not in missed) for seed, steps in enumerate(spent, first)}


SGD, KFAC = row(520, 540, 520), row(300, 280, 300)  # to 90 %, docs/results.md
STEPS = st.lists(st.integers(10, 1000), min_size=2, max_size=10)


def test_kfac_and_sgd_of_the_results_page_are_separable_with_three_seeds():
    compared = find_separation(KFAC, SGD)
    assert compared.ratio == pytest.approx((300 * 280 * 300 / (520 * 540 * 520)) ** (1 / 3))
    assert compared.separable and compared.high < 1 and compared.seeds_needed == 0


def test_interval_is_that_of_the_logarithms_of_pairs():
    logs = [math.log(300 / 520), math.log(280 / 540), math.log(300 / 520)]
    interval = mean_interval(logs, 0.05)
    compared = find_separation(KFAC, SGD)
    assert (compared.low, compared.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))


def test_only_shared_seeds_are_compared():
    more = {**KFAC, 7: Observation(9999, True), 8: Observation(9999, True)}
    assert find_separation(more, SGD) == find_separation(KFAC, SGD)


def test_rows_without_shared_seeds_are_paired_in_order():
    later = row(520, 540, 560)
    shifted = {seed + 10: observation for seed, observation in reversed(later.items())}
    assert find_separation(KFAC, shifted) == find_separation(KFAC, later)
    assert find_separation(row(300, 280, 310), shifted) == find_separation(row(300, 280, 310), later)


@given(STEPS, STEPS)
def test_exchanging_the_rows_inverts_the_ratio(first, second):
    forth, back = find_separation(row(*first), row(*second)), find_separation(row(*second), row(*first))
    assert (forth.separable, forth.seeds_needed) == (back.separable, back.seeds_needed)
    assert forth.ratio is not None and back.ratio == pytest.approx(1 / forth.ratio)
    if math.isfinite(forth.high):
        assert (back.low, back.high) == pytest.approx((1 / forth.high, 1 / forth.low))


@given(STEPS, STEPS, st.sampled_from([2, 16]))
def test_the_unit_of_steps_does_not_matter(first, second, factor):
    scaled = find_separation(row(*(factor * steps for steps in first)), row(*(factor * steps for steps in second)))
    assert scaled.ratio == pytest.approx(find_separation(row(*first), row(*second)).ratio)
    assert scaled.separable == find_separation(row(*first), row(*second)).separable


def test_rows_with_equal_ratios_are_separable_only_with_a_resolution():
    first, second = row(240, 240, 240, 240), row(520, 520, 520, 520)
    assert not find_separation(first, second).separable
    assert find_separation(first, second).seeds_needed is None
    rounded = find_separation(first, second, resolution=20)
    assert rounded.separable and rounded.low < 220 / 520 and rounded.high > 240 / 500


def test_the_interval_contains_the_ratios_of_all_crossings_between_the_evaluations():
    rng = np.random.default_rng(0)
    first, second = rng.integers(200, 210, size=5), rng.integers(230, 240, size=5)
    a, b = (
        {seed: Observation(float(10 * -(-steps // 10)), True, 10 * ((steps - 1) // 10) + 1.0)
         for seed, steps in enumerate(some)}
        for some in (first, second)
    )  # fmt: skip
    rounded = find_separation(a, b)
    for _ in range(200):
        drawn = [
            {seed: Observation(float(rng.uniform(item.earliest or 0, item.spent)), True) for seed, item in some.items()}
            for some in (a, b)
        ]
        exact = find_separation(*drawn)
        assert rounded.low <= exact.low * (1 + 1e-12) and exact.high <= rounded.high * (1 + 1e-12)


def test_a_leader_by_less_than_the_evaluations_is_none():
    def rounded(*spent, earlier):
        return {seed: Observation(steps, True, steps - earlier) for seed, steps in enumerate(spent)}

    for earlier, best, tied in ((0, 0, (0,)), (19, None, (0, 1))):
        rows = [rounded(200, 202, 201, 199, earlier=earlier), rounded(220, 222, 223, 219, earlier=earlier)]
        assert find_leader(rows) == best and tied_with_leader(rows) == tied


def test_a_miss_on_one_side_counts_as_later():
    hits, misses = row(*[100] * 6), row(*[400] * 6, missed=tuple(range(6)))
    compared = find_separation(hits, misses)
    assert compared.separable and compared.ratio is None
    assert (compared.low, compared.high) == pytest.approx((0, 100 / 400))
    assert find_separation(misses, hits).low == pytest.approx(4)


def test_five_pairs_with_a_miss_are_one_too_few():
    hits, misses = row(*[100] * 5), row(*[400] * 5, missed=(4,))
    compared = find_separation(hits, misses)
    assert not compared.separable and compared.seeds_needed == 1


def test_the_seeds_that_are_needed_with_misses_are_enough():
    first, second = row(*[100] * 5, 300), row(*[200] * 6, missed=(0,))
    more = find_separation(first, second).seeds_needed
    assert more is not None
    sixths = -(-(6 + more) // 6)
    again = range(6 * sixths)
    assert find_separation({s: first[s % 6] for s in again}, {s: second[s % 6] for s in again}).separable
    fewer = range(6 * (sixths - 2))
    assert not find_separation({s: first[s % 6] for s in fewer}, {s: second[s % 6] for s in fewer}).separable


def test_a_miss_with_a_smaller_budget_proves_nothing():
    hits, short = row(*[100] * 8), row(*[50] * 8, missed=tuple(range(8)))
    compared = find_separation(hits, short)
    assert not compared.separable and compared.high == pytest.approx(2)


def test_two_misses_of_a_pair_prove_nothing():
    both = row(*[400] * 9, missed=tuple(range(9)))
    compared = find_separation(both, both)
    assert (compared.low, compared.high, compared.ratio) == (0, math.inf, None)


def test_a_diverged_run_is_later_than_any_crossing():
    diverged = row(*[math.inf] * 6, missed=tuple(range(6)))
    compared = find_separation(row(*[100] * 6), diverged)
    assert compared.separable and compared.high == 0


def test_rows_without_seeds_are_not_separable():
    assert not find_separation({}, SGD).separable and find_separation({}, SGD).ratio is None


def test_the_seeds_that_are_needed_suffice():
    first, second = row(100, 110), row(150, 140)
    more = find_separation(first, second).seeds_needed
    assert more is not None and more > 0
    pairs = 2 + more
    spread = np.std([math.log(100 / 150), math.log(110 / 140)], ddof=1)
    centre = np.mean([math.log(100 / 150), math.log(110 / 140)])
    shape = np.arange(pairs) - (pairs - 1) / 2
    logs = centre + spread * shape / shape.std(ddof=1)
    assert find_separation(row(*np.exp(logs)), row(*[1.0] * pairs)).separable
    logs = np.delete(shape, 0)
    logs = centre + spread * (logs - logs.mean()) / logs.std(ddof=1)
    assert not find_separation(row(*np.exp(logs)), row(*[1.0] * (pairs - 1))).separable


# ------------------------------------------------------------------------------------------------------------- leaders
def jittered(steps: float, seed: int, seeds: int = 8) -> dict[int, Observation]:
    return row(*(steps * np.exp(0.03 * np.random.default_rng(seed).standard_normal(seeds))))


def test_a_clear_leader_is_named_wherever_it_stands():
    rows = [jittered(steps, seed) for seed, steps in enumerate([500, 300, 520, 510])]
    assert find_leader(rows) == 1 and tied_with_leader(rows) == (1,)
    assert find_leader(rows[1:]) == 0 and find_leader(rows[::-1]) == 2


def test_equal_rows_ahead_of_others_are_tied():
    rows = [jittered(steps, seed) for seed, steps in enumerate([300, 500, 301, 520])]
    assert find_leader(rows) is None and tied_with_leader(rows) == (0, 2)


def test_fewer_than_two_rows_have_no_leader():
    assert find_leader([]) is None and find_leader([KFAC]) is None
    assert tied_with_leader([]) == () and tied_with_leader([KFAC]) == (0,)


def test_a_leader_must_be_separable_from_rows_that_others_beat():
    """Row 2 is beaten by row 1, but shares too few seeds with row 0."""
    fast = {seed: Observation(steps, True) for seed, steps in enumerate([100, 101, 99, 100.5])}
    middle = {seed: Observation(steps, True) for seed, steps in enumerate([200, 203, 198, 201, 199, 202, 200, 204])}
    slow = {seed: Observation(steps, True) for seed, steps in zip(range(3, 8), [400, 404, 399, 401, 405], strict=True)}
    assert tied_with_leader([fast, middle, slow]) == (0,)
    assert find_leader([fast, middle, slow]) is None


def test_the_level_is_corrected_for_the_number_of_rows():
    """Two rows that are just separable are not, once eight more rows could have been the leader."""
    first, second = row(300, 281, 300), row(520, 540, 520)
    assert find_leader([first, second]) == 0
    others = [jittered(5000, seed, 3) for seed in range(8)]
    assert find_leader([first, second, *others]) is None
    assert set(tied_with_leader([first, second, *others])) >= {0, 1}


def test_three_seeds_suffice_for_a_leader_of_four_rows_but_not_of_five():
    """As docs/statistics.md says."""
    rows = [row(*(steps * factor for factor in (1.0, 1.001, 0.999))) for steps in (1, 1000, 2000, 3000)]
    rows[1:] = [row(*(steps * factor for factor in (1.0, 1.0, 1.001))) for steps in (1000, 2000, 3000)]
    assert find_leader(rows) == 0
    assert find_leader([*rows, row(4000, 4001, 4000)]) is None
