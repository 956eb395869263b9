"""Intervals and decisions that stay valid while seeds are added, however often somebody looks.

A usual 95 % interval holds for one number of seeds, chosen in advance. Whoever adds seeds until such an interval says
what they hope for is wrong far more often than 5 %. The intervals of this module are *confidence sequences*: with
probability 1 − alpha they contain the truth at every number of seeds at once. An interval contains the hypotheses
against which the evidence (`suite/statistics/evidence.py`) is below 1/alpha now.

Both intervals depend on the set of values, not on their order. Values must be independent draws from one distribution,
and each started seed must be included, whatever it shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suite.statistics.evidence import critical_count, critical_t
from suite.statistics.flips import compute_exponential

State = Literal["inside", "outside", "undecided"]
Statistic = Literal["mean", "median"]

MOST_NEEDED = 200  # seeds more, beyond which `Decision.seeds_needed` is None


@dataclass(frozen=True)
class Interval:
    """Values that are not excluded, bounds included; infinite where nothing is excluded."""

    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """Answer to the question whether the truth lies in a region.

    Attributes:
        state: inside if the interval lies in the region; outside if the two are disjoint, for two bounds with half of
            the error on each side; otherwise undecided.
        estimate: mean or median of the values (the geometric mean, if logarithms were analysed).
        low: lower bound of the mean or median, exceeded with probability alpha at most.
        high: upper bound, likewise.
        seeds_needed: about how many more seeds would decide, if estimate and spread stayed as they are. 0 if decided.
            None if that is more than 200, or if the values do not tell (one value; an estimate on a bound).
    """

    state: State
    estimate: float
    low: float
    high: float
    seeds_needed: int | None


def mean_interval(values: Sequence[float], alpha: float = 0.05, *, resolution: float = 0.0) -> Interval:
    """Confidence sequence of the mean of Gaussian values whose variance is unknown.

    With probability 1 − alpha, the interval contains the mean at every number of values; alpha / 2 is spent on each
    side. Equal values contain no
    information about the spread. Therefore nothing is excluded, unless `resolution` is given.

    Args:
        values: one per seed, finite.
        alpha: probability that the interval ever excludes the mean.
        resolution: spacing of the values, if they are rounded (a crossing is known to one evaluation). The interval
            then contains all intervals of unrounded values, which differ from `values` by at most resolution / 2.

    Raises:
        ValueError: if a value is not finite; `median_interval_sequential` accepts missed targets.
    """
    numbers = np.asarray(values, dtype=float)
    if not np.isfinite(numbers).all():
        raise ValueError("the mean needs finite values; use the median for missed targets")
    n = len(numbers)
    critical = critical_t(n, alpha / 2)
    if math.isinf(critical):
        return Interval(-math.inf, math.inf)
    # rounding moves the mean by at most r/2 and the standard deviation by at most r/2·√(n/(n − 1))
    spread = float(numbers.std(ddof=1)) + resolution / 2 * math.sqrt(n / (n - 1))
    if spread <= 1e-12 * float(np.abs(numbers).max()):  # equal up to the errors of float64
        return Interval(-math.inf, math.inf)
    half = critical * spread / math.sqrt(n) + resolution / 2
    mean = float(numbers.mean())
    return Interval(mean - half, mean + half)


def median_interval_sequential(
    values: Sequence[float], alpha: float = 0.05, *, highs: Sequence[float] | None = None
) -> Interval:
    """Confidence sequence of the median, for values of any distribution.

    With probability 1 − alpha, the interval contains the median at every number of values; alpha / 2 is spent on each
    side. At alpha = 0.05 it is unbounded with fewer than 6 values.

    Args:
        values: one per seed; `math.inf` if the target was missed.
        alpha: probability that the interval ever excludes the median.
        highs: for values that are known to lie in an interval; `values` are then its lower ends. A target that was
            missed after 100 steps lies between 100 and infinity.
    """
    lows = sorted(values)
    highest = lows if highs is None else sorted(highs)
    count = critical_count(len(lows), alpha / 2)
    if count is None:
        return Interval(-math.inf, math.inf)
    return Interval(lows[len(lows) - count], highest[count - 1])


def decide(
    values: Sequence[float],
    above: float | None,
    below: float | None,
    statistic: Statistic = "mean",
    alpha: float = 0.05,
    *,
    log: bool = False,
    resolution: float = 0.0,
) -> Decision:
    """Decide whether the mean or median of a quantity lies in a region.

    If the truth lies outside, the state is ever "inside" with probability at most alpha; if it lies inside, it is ever
    "outside" with probability at most alpha. This holds whenever and however often seeds are added. Only one of the two
    can be wrong. So with one bound, each is a test of one side at alpha. With two bounds, "inside" needs such a test
    against both, and "outside" is tested against each at alpha / 2.

    Args:
        values: one per seed, in any order, at least one.
        above: lower bound of the region, excluded from it; None if there is none.
        below: upper bound, excluded; None if there is none.
        statistic: what is compared with the region.
        alpha: the probability above.
        log: analyse logarithms, as is better for ratios and other positive quantities. The mean is then geometric.
        resolution: spacing of the values (of their logarithms if `log`), if they are rounded and the claim is about the
            unrounded quantity. It widens the interval of either statistic.

    Raises:
        ValueError: without values or bounds, or for a value that cannot be analysed.
    """
    if not len(values):
        raise ValueError("no values")
    if above is None and below is None:
        raise ValueError("state above, below or both")
    numbers = np.asarray(values, dtype=float)
    if np.isnan(numbers).any():
        raise ValueError("a value is not a number; use infinity for a missed target")
    low_bound = -math.inf if above is None else above
    high_bound = math.inf if below is None else below
    if log:
        if not (numbers > 0).all() or high_bound <= 0:
            raise ValueError("log=True needs positive values and bounds")
        numbers = np.log(numbers)
        low_bound = math.log(low_bound) if low_bound > 0 else -math.inf
        high_bound = math.log(high_bound)
    sided = 2 * alpha  # of intervals, whose error has two sides

    def bound_truth(level: float) -> Interval:
        if statistic == "mean":
            return mean_interval(numbers.tolist(), level, resolution=resolution)
        ends = (numbers - resolution / 2).tolist(), (numbers + resolution / 2).tolist()
        return median_interval_sequential(ends[0], level, highs=ends[1])

    interval = bound_truth(sided)
    bounds = low_bound, high_bound
    state = decide_interval(interval, bound_truth(alpha) if None not in (above, below) else interval, *bounds)
    if statistic == "mean":
        estimate = float(numbers.mean())
        seeds_needed = _seeds_for_mean(numbers, *bounds, sided, resolution)
    else:
        estimate = median_of(numbers)
        seeds_needed = _seeds_for_median(numbers, *bounds, sided, resolution)
    low, high = interval.low, interval.high
    if log:
        estimate, low, high = compute_exponential(estimate), compute_exponential(low), compute_exponential(high)
    return Decision(state, estimate, low, high, 0 if state != "undecided" else seeds_needed)


def find_least_seeds(statistic: Statistic, alpha: float = 0.05) -> int:
    """Return the fewest values with which `decide` can decide.

    Args:
        statistic: mean or median.
        alpha: of the decision.
    """
    if statistic == "mean":
        return next(n for n in range(1, MOST_NEEDED) if math.isfinite(critical_t(n, alpha)))
    return next(n for n in range(1, MOST_NEEDED) if critical_count(n, alpha) is not None)


def decide_interval(inner: Interval, outer: Interval, above: float, below: float) -> State:
    """Decide by two intervals.

    Args:
        inner: with the error alpha on each side; it must lie in the region.
        outer: it must lie outside; with one bound, it is the same.
        above: lower bound of the region; −∞ if there is none.
        below: upper bound; ∞ if there is none.
    """
    inside = state_of(inner, above, below) == "inside"
    outside = state_of(outer, above, below) == "outside"
    return "inside" if inside else "outside" if outside else "undecided"


def state_of(interval: Interval, above: float, below: float) -> State:
    """Where an interval lies relative to the open region between two bounds, which may be infinite."""
    if (interval.low > above or above == -math.inf) and (interval.high < below or below == math.inf):
        return "inside"
    return "outside" if interval.high <= above or interval.low >= below else "undecided"


def median_of(numbers: NDArray[np.floating]) -> float:
    """Return the median; infinite if half of the values or more are."""
    ordered = np.sort(numbers)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def _seeds_for_mean(
    numbers: NDArray[np.floating], above: float, below: float, alpha: float, resolution: float
) -> int | None:
    """Return the least number of further values that decide, if mean and standard deviation stay the same."""
    n = len(numbers)
    spread = float(numbers.std(ddof=1)) if n > 1 else 0.0
    if spread <= 1e-12 * float(np.abs(numbers).max()) and not resolution:
        return None
    mean = float(numbers.mean())
    for more in range(1, MOST_NEEDED + 1):
        total = n + more
        rounding = resolution / 2 * math.sqrt(total / (total - 1))
        half = critical_t(total, alpha / 2) * (spread + rounding) / math.sqrt(total) + resolution / 2
        if state_of(Interval(mean - half, mean + half), above, below) != "undecided":
            return more
    return None


def _seeds_for_median(
    numbers: NDArray[np.floating], above: float, below: float, alpha: float, resolution: float
) -> int | None:
    """Return the least number of further values that decide, if the shares on each side of the bounds stay the same."""
    lows, highs = numbers - resolution / 2, numbers + resolution / 2
    shares = [(lows > above).mean()] * math.isfinite(above) + [(highs < below).mean()] * math.isfinite(below)
    beyond = max(float((highs <= above).mean()), float((lows >= below).mean()))
    return seeds_for_share(max(float(min(shares)), beyond), len(numbers), alpha)


def seeds_for_share(share: float, n: int, alpha: float) -> int | None:
    """Return the least number of values beyond n at which a share of all of them suffices to bound the median.

    Args:
        share: of the values that lie on one side.
        n: number of values so far.
        alpha: of an interval with two sides.

    Returns:
        The number; None if it is more than 200.
    """
    for more in range(1, MOST_NEEDED + 1):
        count = critical_count(n + more, alpha / 2)
        if count is not None and share * (n + more) >= count - 1e-9:
            return more
    return None
