"""Statistics over a few seeds: how often a target is reached, and when.

Runs that miss the target count as censored: their crossing is later than the steps (or seconds) that they spent. No
distribution is assumed. With few seeds the intervals are wide, and each states its coverage. They hold for a number of
seeds that was chosen in advance; `suite/statistics/sequential.py` has intervals that hold while seeds are added.

scipy has both intervals (`binomtest().proportion_ci("wilson")`, `quantile_test().confidence_interval()`), and the tests
compare with it. It is not used here, because importing scipy.stats takes most of a second of each `suite board`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

CONFIDENCE = 0.95  # conventional; every interval states its coverage


@dataclass(frozen=True)
class Observation:
    """One seed: the steps or seconds to the target, or those spent without reaching it.

    A run that can never reach the target, because it diverged, has spent `math.inf`. A crossing is seen at an
    evaluation; `earliest` is the first step (or second) after the evaluation before, if that matters.
    """

    spent: float
    reached: bool
    earliest: float | None = None  # None: the crossing was at `spent`


@dataclass(frozen=True)
class Summary:
    """Steps or seconds to a target over seeds; None means more than was spent."""

    n: int
    hits: int
    hit_low: float  # Wilson interval of the hit rate
    hit_high: float
    median: float | None  # None when half of the seeds or more miss
    beyond: float | None  # then a lower bound of the median: the smallest budget that missed; None: all diverged
    low: float | None  # interval of the median
    high: float | None
    coverage: float  # least probability that the interval contains the median


def wilson_interval(hits: int, n: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval of a hit rate (Wilson 1927), which is valid for few seeds and for 0 and n hits.

    Returns:
        Lower and upper bound.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = hits / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Distribution-free interval of the median from two order statistics, and its coverage.

    The k-th smallest and k-th largest of n values enclose the median with probability 1 − 2·P(B < k), where B is
    binomial(n, 1/2) (Thompson 1936). The largest k that covers `confidence` is used. With fewer than 6 values,
    even k = 1 covers less than 0.95; then the result is the smallest and largest value, which cover 1 − 2^(1−n).

    Args:
        values: one per seed; infinite if the target was missed.
        confidence: the required coverage.

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


def summarize_seeds(observations: Iterable[Observation], *, confidence: float = CONFIDENCE) -> Summary:
    """Hit rate and median over seeds; misses are censored at what they spent.

    Every miss ranks after every hit. This is exact if all seeds had the same budget; if a miss had a smaller budget,
    the median is overestimated. If exactly half of the seeds miss, `beyond` bounds the upper of the two middle values.

    Args:
        observations: one per seed, at least one.
        confidence: required coverage of both intervals.
    """
    seeds = list(observations)
    misses = [seed.spent for seed in seeds if not seed.reached]
    values = [seed.spent if seed.reached else math.inf for seed in seeds]
    n, hits = len(seeds), len(seeds) - len(misses)
    hit_low, hit_high = wilson_interval(hits, n, confidence=confidence)
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
