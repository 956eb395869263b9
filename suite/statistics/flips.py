"""Exact sign-flip test of paired differences, and the interval of a ratio that follows from it.

If two rows do not differ, each difference of a pair is as likely as its negative. The p-value is therefore the share of
all choices of signs that give a sum at least as extreme as the observed one. It assumes nothing about the distribution,
so that neither rounding nor two modes nor missed targets do harm (Fisher, *The Design of Experiments*, 1935, §21).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from suite.statistics.summary import CONFIDENCE

Floats = NDArray[np.floating]

ROUNDING = 1e-9  # sums of logarithms that are closer count as equal
ENDLESS = 1e9  # stands for an infinite logarithm
MOST_EXACT = 16  # differences up to which all choices of signs are used; beyond, 2¹⁶ drawn ones with a fixed seed


@dataclass(frozen=True)
class Ratio:
    """A ratio over pairs, with its interval.

    Attributes:
        estimate: the geometric mean; None without pairs, or if a target was missed.
        low: lower bound; 0 if there is none.
        high: upper bound; infinite if there is none.
        coverage: probability that the interval contains the true ratio.
        pairs: number of pairs.
    """

    estimate: float | None
    low: float
    high: float
    coverage: float
    pairs: int

    @property
    def differs(self) -> bool:
        """Return whether the interval excludes 1 and covers as much as is usual."""
        return not self.low <= 1 <= self.high and self.coverage >= CONFIDENCE


@lru_cache(maxsize=4)
def choose_flips(n: int) -> Floats:
    """Return choices of the differences to flip, of shape (choices, n), 1 where one is flipped; the first flips none.

    With drawn choices, the p-value remains valid, because the first one is always among them.
    """
    if n <= MOST_EXACT:
        return np.array((np.arange(2**n)[:, None] >> np.arange(n)) & 1, dtype=float)
    chosen = np.random.default_rng(n).integers(0, 2, (2**MOST_EXACT, n)).astype(float)
    chosen[0] = 0
    return chosen


def flip_p_value(differences: Sequence[float] | Floats) -> float:
    """Return the one-sided p-value of "the differences are not below 0".

    A choice of signs gives a sum that is at most the observed one if the flipped differences have a sum of 0 or more.

    Args:
        differences: one for each pair, finite.
    """
    values = np.asarray(differences, dtype=float)
    return float((choose_flips(len(values)) @ values >= -ROUNDING).mean())


def ratio_interval(lows: Sequence[float], highs: Sequence[float]) -> Ratio:
    """Return the interval of a ratio: all ratios that neither one-sided flip test rejects.

    Its ends are order statistics of the means of all subsets of the differences (Hartigan, "Using subsample values as
    typical values", JASA 64 (1969)). Where a difference is known up to an interval only, each end takes the worse
    value. An interval of 95 % needs six pairs; with fewer, the interval is the range of the pairs, and covers less.

    Args:
        lows: lower ends of the differences of logarithms, one for each pair; −∞ if unknown.
        highs: upper ends; ∞ if unknown.
    """
    if not len(lows):
        return Ratio(None, 0.0, math.inf, 0.0, 0)
    low, high = (np.clip(np.asarray(ends, dtype=float), -ENDLESS, ENDLESS) for ends in (lows, highs))
    count = max(1, math.floor((1 - CONFIDENCE) / 2 * len(choose_flips(len(low)))))
    known = np.abs([low, high]).max() < ENDLESS / 100
    return Ratio(
        estimate=compute_exponential(float((low + high).mean() / 2)) if known else None,
        low=compute_exponential(-_largest_mean(-low, count)),
        high=compute_exponential(_largest_mean(high, count)),
        coverage=1 - 2 * count / len(choose_flips(len(low))),
        pairs=len(low),
    )


def _largest_mean(values: Floats, count: int) -> float:
    """Return the `count`-th largest mean of the values' subsets; ±∞ if a value in it is."""
    chosen = choose_flips(len(values))[1:]
    means = chosen @ values / np.maximum(1, chosen.sum(axis=1))
    found = float(np.partition(means, len(means) - count)[len(means) - count])
    return math.copysign(math.inf, found) if abs(found) * len(values) > ENDLESS / 100 else found


def compute_exponential(number: float) -> float:
    """Raise e to a power; infinite where a float64 overflows."""
    return math.inf if number > 700 else math.exp(number)
