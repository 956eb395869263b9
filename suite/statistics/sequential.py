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

State = Literal["inside", "outside", "undecided"]
Statistic = Literal["mean", "median"]

MOST_NEEDED = 200  # seeds more, beyond which `Decision.seeds_needed` is None


@dataclass(frozen=True)
class Interval:
    """The values that are not excluded, bounds included; infinite where nothing is excluded."""

    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """Whether the truth lies in a region.

    Attributes:
        state: inside if the interval lies in the region, outside if the two are disjoint, otherwise undecided.
        estimate: mean or median of the values (the geometric mean, if logarithms were analysed).
        low: lower bound of the interval of the mean or median.
        high: upper bound.
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

    With probability 1 − alpha, the interval contains the mean at every number of values. Equal values contain no
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
    critical = critical_t(n, alpha)
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
    "outside" with probability at most alpha. This holds whenever and however often seeds are added.

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
    if statistic == "mean":
        interval = mean_interval(numbers.tolist(), alpha, resolution=resolution)
        estimate = float(numbers.mean())
        seeds_needed = _seeds_for_mean(numbers, low_bound, high_bound, alpha, resolution)
    else:
        lows, highs = numbers - resolution / 2, numbers + resolution / 2
        interval = median_interval_sequential(lows.tolist(), alpha, highs=highs.tolist())
        estimate = median_of(numbers)
        shares = [(lows > low_bound).mean(), (highs < high_bound).mean()]
        within = min(share for share, bound in zip(shares, (above, below), strict=True) if bound is not None)
        beyond = max(float((highs <= low_bound).mean()), float((lows >= high_bound).mean()))
        seeds_needed = seeds_for_share(max(float(within), beyond), len(numbers), alpha)
    state = state_of(interval, low_bound, high_bound)
    low, high = interval.low, interval.high
    if log:
        estimate, low, high = exponential(estimate), exponential(low), exponential(high)
    return Decision(state, estimate, low, high, 0 if state != "undecided" else seeds_needed)


def state_of(interval: Interval, above: float, below: float) -> State:
    """Where an interval lies relative to the open region between two bounds, which may be infinite."""
    if (interval.low > above or above == -math.inf) and (interval.high < below or below == math.inf):
        return "inside"
    return "outside" if interval.high <= above or interval.low >= below else "undecided"


def exponential(number: float) -> float:
    """Raise e to a power; infinite where a float64 overflows."""
    return math.inf if number > 700 else math.exp(number)


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
        half = critical_t(total, alpha) * (spread + rounding) / math.sqrt(total) + resolution / 2
        if state_of(Interval(mean - half, mean + half), above, below) != "undecided":
            return more
    return None


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
