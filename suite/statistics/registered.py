"""Rule A: which rows are earlier, at numbers of seeds that were registered before the runs.

The error of 5 % is divided over the looks. Every claim is a closed test: row i is earlier than row j only if the pair
and every group of rows that contains both reject "these rows are interchangeable" at the levels of Ryan, Einot, Gabriel
and Welsch. So the probability of any false claim between equal rows is at most 5 % (Marcus, Peritz and Gabriel, "On
closed testing procedures", Biometrika 63 (1976)), and a hopeless row changes no pair's p-value. docs/statistics.md has
the assumptions, the measured errors and the power.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from suite.contract import UserError
from suite.statistics.flips import ROUNDING, Floats, flip_p_value
from suite.statistics.ranking import Flags, Ranking

ALPHA = 0.05  # probability of any wrong claim on one ladder; conventional
PERMUTATIONS = 999  # of a group; the smallest p-value is 1/1000; a level of 1/252 is the smallest that looks need
MOST_SEEDS = 40  # in a search for the number of seeds that can decide


@dataclass(frozen=True)
class Look:
    """One registered look.

    Attributes:
        seeds: how many of the registered seeds it uses, from the first.
        alpha: its share of the error.
        separation: it compares runs without pairing: every run of one row must be earlier than every run of the other.
            Otherwise it flips the signs of paired differences.
    """

    seeds: int
    alpha: float
    separation: bool = False

    def can_decide(self, rows: int) -> bool:
        """Return whether the clearest possible difference of two rows is significant."""
        if self.separation:
            return rows <= self.alpha * math.comb(2 * self.seeds, self.seeds) * (1 + ROUNDING)
        groups = rows <= 2 or rows <= 3 * self.alpha * (PERMUTATIONS + 1)  # a group of three has the lowest level
        return groups and rows <= self.alpha * 2**self.seeds * (1 + ROUNDING)


def divide_error(rows: int, seeds: Sequence[int], alpha: float = ALPHA) -> tuple[Look, ...]:
    """Divide the error over one or two looks.

    One look flips signs, and has all of the error. Before it, an early look may compare without pairing, which needs
    fewer seeds: it receives the least error with which it can decide.

    Args:
        rows: how many are compared.
        seeds: one or two numbers of seeds, increasing.
        alpha: of the ladder.
    """
    early = [Look(n, rows / math.comb(2 * n, n), separation=True) for n in seeds[:-1]]
    return *early, Look(seeds[-1], alpha - sum(look.alpha for look in early))


def plan_looks(rows: int, seeds: Sequence[int], alpha: float = ALPHA) -> tuple[Look, ...]:
    """Divide the error, and refuse a design in which the last look could never decide.

    Args:
        rows: how many are registered, at least 2.
        seeds: one or two numbers of seeds, increasing.
        alpha: of the ladder.

    Raises:
        UserError: names the fewest seeds that can decide.
    """
    if rows < 2 or not 1 <= len(seeds) <= 2 or list(seeds) != sorted(set(seeds)) or seeds[0] < 1:
        raise UserError(f"looks: {list(seeds)}: register one or two increasing numbers of seeds, for two rows or more")
    looks = divide_error(rows, seeds, alpha)
    if not looks[-1].can_decide(rows):
        least = list(find_least_looks(rows, len(seeds), alpha))
        raise UserError(f"looks: {list(seeds)}: too few seeds to separate {rows} rows; the fewest are looks: {least}")
    return looks


def find_least_looks(rows: int, looks: int = 1, alpha: float = ALPHA) -> tuple[int, ...]:
    """Find the fewest seeds with which a design of one or two looks can decide.

    Args:
        rows: of the ladder.
        looks: how many.
        alpha: of the ladder.

    Raises:
        UserError: for more rows than any number of seeds can rank.
    """
    for early in range(1, MOST_SEEDS) if looks == 2 else (0,):
        spent = rows / math.comb(2 * early, early) if early else 0.0
        for last in range(early + 1, MOST_SEEDS):
            if Look(last, alpha - spent).can_decide(rows):
                return (early, last) if early else (last,)
    raise UserError(f"{rows} rows are too many for a ladder of at most {MOST_SEEDS} seeds; register fewer optimizers")


def rank_registered(values: Floats, looks: Sequence[Look]) -> Ranking:
    """Rank rows at the looks that their seeds allow. A claim of an early look stays.

    Args:
        values: of shape (seeds, rows), in the registered order of seeds: the logarithm of the steps to the target, the
            mean over frameworks. A miss counts as the evaluation after the smallest budget. NaN: not run; a row
            without all seeds of a look has no part in it, but counts as registered.
        looks: from `plan_looks`, for at least as many rows.
    """
    rows = values.shape[1]
    wins = np.zeros((rows, rows), bool)
    for look in looks:
        seen = values[: look.seeds]
        complete = np.flatnonzero(np.isfinite(seen).all(axis=0)) if len(seen) == look.seeds else np.zeros(0, int)
        if len(complete) > 1:
            new = np.zeros_like(wins)
            new[np.ix_(complete, complete)] = _find_wins(seen[:, complete], look, rows)
            wins |= Ranking(wins | new).wins  # a claim that contradicts an early one is left out
    return Ranking(wins)


def _find_wins(values: Floats, look: Look, registered: int) -> Flags:
    """Return the wins of one look, between rows that have all of its seeds."""
    rows = values.shape[1]
    p_values = np.ones((rows, rows))
    for i, j in itertools.permutations(range(rows), 2):
        p_values[i, j] = (_separate if look.separation else _flip)(values[:, i], values[:, j])
    level = look.alpha / registered * (1 + ROUNDING)
    alive = np.minimum(p_values, p_values.T) <= level
    for size in range(rows, 2, -1):
        for group in itertools.combinations(range(rows), size):
            block = np.ix_(group, group)
            if alive[block].any() and _test_group(values[:, group], look) > level * size:
                alive[block] = False
    return alive & (p_values < p_values.T)


def _flip(first: Floats, second: Floats) -> float:
    return flip_p_value(first - second)


def _separate(first: Floats, second: Floats) -> float:
    """Return the p-value of "all runs of the first row are earlier than all of the second", 1 if they are not.

    ∫ ∏(1 − F) d∏F ≤ 1/C(2n, n) for runs that are interchangeable within a seed, by the inequality of the means.
    """
    n = len(first)
    return 1 / math.comb(2 * n, n) if first.max() < second.min() - ROUNDING else 1.0


def _test_group(values: Floats, look: Look) -> float:
    """Return the p-value of "the rows of a group are interchangeable within each seed"."""
    p_value = permute_rows(values)
    return min(1.0, 2 * min(p_value, _cut(values))) if look.separation else p_value


def permute_rows(values: Floats) -> float:
    """Return the permutation p-value of the range of the rows' sums, for values of shape (seeds, rows)."""
    centred = values - values.mean(axis=1, keepdims=True)
    sums = centred.ravel()[_draw_orders(*values.shape)].sum(axis=2)
    ranges = sums.max(axis=1) - sums.min(axis=1)
    return float((1 + (ranges >= np.ptp(centred.sum(axis=0)) - ROUNDING).sum()) / (len(ranges) + 1))


@cache
def _draw_orders(seeds: int, rows: int) -> NDArray[np.integer]:
    """Return random orders of the rows within each seed, as indices of the flattened values; always the same ones.

    Of shape (permutations, rows, seeds): the sums over seeds are contiguous.
    """
    keys = np.random.default_rng([seeds, rows]).random((PERMUTATIONS, rows, seeds))
    return np.argsort(keys, axis=1) + rows * np.arange(seeds)


def _cut(values: Floats) -> float:
    """Bound the probability that some rows of a group have all of their runs before all runs of the others.

    Returns:
        The sum over sets of a of g rows of 1/C(gn, an); 1 if no set of rows lies before the others.
    """
    seeds, rows = values.shape
    order = np.argsort(values.min(axis=0))
    latest = np.maximum.accumulate(values.max(axis=0)[order])[:-1]
    if not (latest < values.min(axis=0)[order][1:] - ROUNDING).any():
        return 1.0
    return sum(math.comb(rows, a) / math.comb(rows * seeds, a * seeds) for a in range(1, rows))
