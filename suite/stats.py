"""Statistics of a few seeds: how often a target is hit, and when.

Runs that miss are not thrown away: a miss says that the crossing lies beyond the steps (or seconds) that were spent.
Nothing here assumes a distribution. With few seeds the intervals are wide, and they say what they cover.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

CONFIDENCE = 0.95  # the field's habit; every interval states what it covers


@dataclass(frozen=True)
class Observation:
    """One seed: the steps or seconds to the target, or what was spent without reaching it.

    A run that can never reach it (it diverged) has spent `math.inf`.
    """

    spent: float
    reached: bool


@dataclass(frozen=True)
class Summary:
    """Steps or seconds to a target over seeds; None stands for "beyond what was spent"."""

    n: int
    hits: int
    hit_low: float  # Wilson interval of the hit rate
    hit_high: float
    median: float | None  # None when half of the seeds or more miss
    beyond: float | None  # then the median is more than this, the smallest budget that missed; None: all diverged
    low: float | None  # interval of the median
    high: float | None
    coverage: float  # the probability with which it holds the median, at least


def wilson(hits: int, n: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval of a hit rate (Wilson 1927): sound for few seeds, and at 0 and n hits."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = hits / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Distribution-free interval of the median from two order statistics, and what it covers.

    The k-th smallest and k-th largest of n values hold the median with probability 1 − 2·P(B < k), where B is
    binomial(n, 1/2) (Thompson 1936). The largest k that still covers `confidence` is taken; under 6 values not even
    k = 1 covers 0.95, and the smallest and largest value are given with the 1 − 2^(1−n) that they do cover.

    Args:
        values: one per seed; infinite where the target was missed.
        confidence: the coverage asked for.

    Returns:
        low, high, coverage.
    """
    n = len(values)
    below = [math.comb(n, k) / 2**n for k in range(n)]  # P(B = k)
    k = 1
    while 2 * (k + 1) <= n and 1 - 2 * sum(below[: k + 1]) >= confidence:
        k += 1
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k], 1 - 2 * sum(below[:k])


def summarize(observations: Iterable[Observation], *, confidence: float = CONFIDENCE) -> Summary:
    """Hit rate and median over seeds, misses counted as censored at what they spent.

    Every miss is ranked after every hit. That is exact when all seeds had the same budget and errs on the slow side
    when a miss had a smaller one. With exactly half missing, `beyond` bounds the upper of the two middle values.

    Args:
        observations: at least one.
        confidence: of both intervals.
    """
    seeds = list(observations)
    misses = [seed.spent for seed in seeds if not seed.reached]
    values = [seed.spent if seed.reached else math.inf for seed in seeds]
    n, hits = len(seeds), len(seeds) - len(misses)
    hit_low, hit_high = wilson(hits, n, confidence=confidence)
    low, high, coverage = median_interval(values, confidence=confidence)
    censored = 2 * len(misses) >= n
    return Summary(
        n=n,
        hits=hits,
        hit_low=hit_low,
        hit_high=hit_high,
        median=None if censored else median(values),
        beyond=_finite(min(misses)) if censored else None,
        low=_finite(low),
        high=_finite(high),
        coverage=coverage,
    )


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
