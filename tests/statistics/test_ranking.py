"""Rules A and B: which rows are earlier, ranks, tiers and leaders."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.contract import UserError
from suite.statistics import registered
from suite.statistics.anytime import BETS, find_evidence, rank_anytime, tabulate_signs
from suite.statistics.ranking import Ranking
from suite.statistics.registered import Look, divide_error, find_least_looks, permute_rows, plan_looks, rank_registered

pytestmark = pytest.mark.quick

LEAST = [(2, 6, 4), (3, 6, 4), (4, 7, 5), (6, 7, 5), (7, 8, 5), (10, 8, 5)]  # rows, seeds by flips, by separation
UNDECIDABLE = [
    (12, (5, 13)),
    (200, (20,)),
    (5, (3, 10)),
    (5, (5, 7)),
    (5, (10, 5)),
    (5, ()),
    (5, (5, 5)),
    (1, (9,)),
    (5, (4, 8, 9)),
]
RATIOS = (1.0, 1.0, 1.5, 3.0)


def ladder(seed, rows=RATIOS, seeds=10, spread=0.1):
    """Logarithms of steps, of shape (seeds, rows)."""
    return np.log(rows) + spread * np.random.default_rng(seed).standard_normal((seeds, len(rows)))


def by_pairs(values):
    pairs = itertools.combinations(range(values.shape[1]), 2)
    return {(i, j): (values[:, i] - values[:, j]).tolist() for i, j in pairs}


def evidence_of(differences):
    return float(find_evidence(np.reshape(differences, (1, -1)))[0])


def rank_a(values, looks=(10,)):
    return rank_registered(values, divide_error(values.shape[1], looks))


def rank_b(values):
    return rank_anytime(values.shape[1], by_pairs(values))


RULES = pytest.mark.parametrize("rank", [rank_a, rank_b])


# ------------------------------------------------------------------------------------------------------------ ranking
def test_ranks_and_tiers_follow_from_wins():
    wins = np.zeros((4, 4), bool)
    wins[0, 2:] = wins[1, 2:] = True
    ranking = Ranking(wins)
    assert ranking.ranks == ((1, 2), (1, 2), (3, 4), (3, 4)) and ranking.tiers == (1, 1, 2, 2)
    assert ranking.possible_best == (0, 1) and ranking.leader is None
    wins[0, 1] = True
    assert Ranking(wins).leader == 0 and Ranking(wins).ranks[:2] == ((1, 1), (2, 2))


def test_a_row_earlier_than_an_earlier_one_is_earlier():
    wins = np.zeros((3, 3), bool)
    wins[0, 1] = wins[1, 2] = True
    assert Ranking(wins).ranks == ((1, 1), (2, 2), (3, 3)) and Ranking(wins).leader == 0


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_wins_are_never_cyclic(claims):
    wins = np.zeros((6, 6), bool)
    for i, j in claims:
        wins[i, j] = i != j
    ranking = Ranking(wins)
    reached = np.linalg.matrix_power(np.eye(6) + ranking.wins, 6) > 0
    assert not (reached & reached.T & ~np.eye(6, dtype=bool)).any()
    assert all(1 <= low <= high <= 6 for low, high in ranking.ranks)


def test_one_row_leads_nobody():
    assert Ranking(np.zeros((1, 1), bool)).leader is None and Ranking(np.zeros((0, 0), bool)).ranks == ()


# ------------------------------------------------------------------------------------------------------------- both
@RULES
def test_clear_rows_are_ranked(rank):
    ranking = rank(ladder(0, (1.0, 1.5, 2.2), spread=0.05))
    assert ranking.leader == 0 and ranking.tiers == (1, 2, 3)


@RULES
def test_equal_rows_share_a_tier(rank):
    ranking = rank(ladder(1))
    assert ranking.possible_best == (0, 1) and ranking.tiers[:2] == (1, 1) and ranking.tiers[3] > 1


@RULES
@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 5))
def test_order_of_rows_changes_nothing(rank, order, seed):
    values = ladder(seed)
    ranks = rank(values).ranks
    assert rank(values[:, list(order)]).ranks == tuple(ranks[row] for row in order)


@RULES
def test_unit_and_rounding_errors_change_nothing(rank):
    for seed in range(5):
        values = np.log(np.round(100 * np.exp(ladder(seed)), -1))
        shaken = values + 1e-12 * np.random.default_rng(seed).standard_normal(values.shape)
        assert rank(values).ranks == rank(values + math.log(20)).ranks == rank(shaken).ranks


@RULES
def test_rows_that_never_arrive_are_tied(rank):
    values = np.column_stack([ladder(0, (1.0,)), np.full((10, 2), math.log(9))])
    assert rank(values).ranks == ((1, 1), (2, 3), (2, 3))


# ------------------------------------------------------------------------------------------------------------- rule A
@pytest.mark.parametrize(
    ("rows", "flips", "separation"), [(2, 6, 4), (3, 6, 4), (4, 7, 5), (6, 7, 5), (7, 8, 5), (10, 8, 5)]
)
def test_least_seeds_of_a_design(rows, flips, separation):
    assert find_least_looks(rows) == (flips,)
    assert find_least_looks(rows, looks=2)[0] <= separation
    assert Look(separation, 0.05, separation=True).can_decide(rows)
    assert not Look(separation - 1, 0.05, separation=True).can_decide(rows)
    assert plan_looks(rows, (flips,))[0].alpha == 0.05
    with pytest.raises(UserError, match=rf"too few seeds to separate {rows} rows; the fewest are looks: \[{flips}\]"):
        plan_looks(rows, (flips - 1,))


@pytest.mark.parametrize(("rows", "looks"), UNDECIDABLE)
def test_designs_that_cannot_decide_are_refused(rows, looks):
    with pytest.raises(UserError, match=r"looks: |too many for a ladder"):
        plan_looks(rows, looks)


@pytest.mark.parametrize("rows", [2, 5, 7, 10])
def test_looks_share_the_error_and_each_can_decide(rows):
    looks = plan_looks(rows, (5, 10))
    assert sum(look.alpha for look in looks) == pytest.approx(0.05) and all(look.can_decide(rows) for look in looks)
    clear = np.arange(rows) + ladder(0, [1.0] * rows, spread=0.01)
    assert rank_registered(clear[:5], looks).tiers == rank_registered(clear, looks).tiers == tuple(range(1, rows + 1))


def test_an_early_claim_stays_and_a_later_look_does_not_contradict_it():
    looks = plan_looks(2, (5, 10))
    early = np.column_stack([np.linspace(1, 1.1, 10), np.linspace(2, 2.1, 10)])
    late = early.copy()
    late[5:, 0] = 30.0
    assert rank_registered(early[:5], looks).leader == rank_registered(late, looks).leader == 0
    assert rank_registered(late[:4], looks).leader is None


def test_a_row_without_all_seeds_waits_and_counts():
    values = np.arange(4.0) + ladder(0, [1.0] * 4, spread=0.01)
    values[8:, 1] = np.nan
    ranking = rank_a(values)
    assert ranking.ranks == ((1, 2), (1, 4), (2, 3), (3, 4))


def test_a_hopeless_rival_changes_no_p_value():
    values = ladder(2, (1.0, 1.3, 1.6))
    with_rival = np.column_stack([values, np.full(10, 9.0)])
    levels = divide_error(4, (10,))  # of the larger ladder in both
    ranks = rank_registered(values, levels).wins
    assert (rank_registered(with_rival, levels).wins[:3, :3] == ranks).all()


def test_groups_protect_rows_that_are_equal():
    """One pair of six rows is significant by itself; the group is not."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.standard_normal((8, 6))
        p_values = [
            registered.flip_p_value(values[:, i] - values[:, j]) for i, j in itertools.permutations(range(6), 2)
        ]
        if min(p_values) <= 0.05 / 6 and permute_rows(values) > 0.05:
            assert not rank_a(values, (8,)).wins.any()
            return
    pytest.fail("no such ladder")


def test_permutations_of_a_group_are_those_of_all_orders():
    values = np.array([[0.0, 1.0, 2.5], [0.3, 0.9, 2.0], [1.0, 0.2, 1.4]])
    ranges = [
        np.ptp(np.sum([row[list(order)] for row, order in zip(values, orders, strict=True)], axis=0))
        for orders in itertools.product(itertools.permutations(range(3)), repeat=3)
    ]
    exact = np.mean([spread >= np.ptp(values.sum(axis=0)) - 1e-9 for spread in ranges])
    assert permute_rows(values) == pytest.approx(exact, abs=0.03)


def test_error_of_rule_a_is_below_its_level():
    """Equal rows, and two equal rows before hopeless ones: any claim between equal rows is wrong."""
    rng = np.random.default_rng(4)
    for rows, equal in (((1.0,) * 4, 4), ((1.0, 1.0, 9.0, 9.0), 2)):
        wrong = 0
        for _ in range(400):
            values = np.log(rows) + 0.1 * rng.standard_t(3, (8, 4))
            wrong += rank_a(values, (8,)).wins[:equal, :equal].any()
        assert wrong / 400 < 0.075  # 5 %, and two standard errors


# ------------------------------------------------------------------------------------------------------------- rule B
def test_evidence_does_not_grow_on_average():
    """Exact, over all signs of a symmetric distribution."""
    sizes = np.array([0.05, 0.2, 0.01, 0.4])
    mean = np.mean([weigh(np.array(signs) * sizes) for signs in itertools.product((1, -1), repeat=4)])
    assert mean == pytest.approx(1)


def weigh(differences):
    """Return the evidence after all differences, not its largest value."""
    sized = np.mean([np.prod(np.exp(-bet * differences) / np.cosh(bet * differences)) for bet in BETS])
    n = int((differences != 0).sum())
    return (sized + tabulate_signs(len(differences))[n, int((differences < 0).sum())]) / 2


@given(st.lists(st.integers(-30, 30).map(lambda number: number / 64), min_size=1, max_size=12))
def test_evidence_is_a_product_and_ties_change_nothing(differences):
    values = np.array(differences)
    assert evidence_of(values) == pytest.approx(weigh(values))
    assert evidence_of(values - 0.01) >= evidence_of(values) * (1 - 1e-9) or (values == 0).any()


def test_order_of_seeds_changes_nothing():
    """Whoever adds the seeds in another order must not find more."""
    values = ladder(5, (1.0, 1.1, 1.4), seeds=14)
    assert rank_b(values[::-1]).ranks == rank_b(values).ranks
    reversed_later = np.concatenate([np.tile([[0.0, 1.0]], (8, 1)), np.tile([[1.0, 0.0]], (14, 1))])
    assert rank_b(reversed_later).leader != 0


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_evidence_that_is_looked_at_after_each_seed_rarely_errs(order):
    rng = np.random.default_rng(11)
    wrong = 0
    for _ in range(300):
        values = 0.1 * rng.standard_normal((25, 2))
        seen = [values[:n] if order == "ascending" else values[-n:] for n in range(1, 26)]
        wrong += any(rank_b(some).wins.any() for some in seen)
    assert wrong / 300 < 0.075


def test_a_leader_of_two_rows_needs_evidence_of_two_divided_by_alpha():
    """Half of the error is for the leader. Five equal differences give an evidence of 26.6, six of 52.5."""
    clear = [-1.0] * 6
    assert rank_anytime(2, {(0, 1): clear[:5]}).leader is None and rank_anytime(2, {(0, 1): clear}).leader == 0


def test_pairs_need_not_share_all_seeds():
    values = ladder(6, (1.0, 2.0, 4.0), seeds=14)
    pairs = by_pairs(values)
    del pairs[0, 2]
    pairs[0, 1] = pairs[0, 1][:12]
    assert rank_anytime(3, pairs).ranks[0] == (1, 1)
    assert rank_anytime(3, {}).ranks == ((1, 3),) * 3


def test_rows_that_beat_each_other_in_a_circle_have_no_order():
    """i before j before k before i, each in two of three seeds."""
    values = np.log(np.tile([[1, 2, 3], [3, 1, 2], [2, 3, 1]], (40, 1)))
    ranking = rank_b(values)
    assert not ranking.wins.any()


def test_the_order_of_a_counterexample_needs_all_rivals():
    """Orders 1 < b < 2 and 2 < b < 1, half each: b is never the earliest, and often near it. Nobody may lead."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        side = rng.choice([-0.5, 0.5], 10)
        values = np.column_stack([side, np.zeros(10), -side]) + 0.01 * rng.standard_normal((10, 3))
        wrong += rank_a(values).leader is not None or rank_b(values).leader is not None
    assert wrong / 300 < 0.075


def test_one_noisy_row_does_no_harm():
    rng = np.random.default_rng(8)
    wrong = np.zeros(2)
    for _ in range(200):
        values = 0.03 * rng.standard_normal((10, 4)) * [5, 1, 1, 1]
        wrong += [rank_a(values).wins.any(), rank_b(values).wins.any()]
    assert (wrong / 200 < 0.085).all()
