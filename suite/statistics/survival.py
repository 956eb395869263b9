"""Time to a target as censored data: a run that misses the target crosses later than it was trained, if at all.

`suite/statistics/summary.py` ranks every miss after every hit, which is exact if all seeds have the same budget. The
estimates of this module also use misses with smaller budgets. They assume that budgets do not depend on how a run
went; a run that was stopped because it went badly must not be entered with the time of its stop. Runs that diverged
(`spent` is infinite) stay without a crossing forever.

All intervals and p values hold for a number of seeds that was chosen in advance, and approximately: with fewer than
about ten crossings their coverage is below its nominal value. `suite/statistics/sequential.py` has no such limits.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from suite.statistics.summary import Observation


@dataclass(frozen=True)
class Curve:
    """The share of seeds without a crossing, over time (Kaplan and Meier, JASA 53 (1958)).

    Attributes:
        times: steps or seconds of crossings and misses, in order.
        shares: estimated share without a crossing, from each time to the next; 1 before the first.
        lows: lower bounds of the shares (log-log method, pointwise).
        highs: upper bounds.
    """

    times: tuple[float, ...]
    shares: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """A time with its interval; None means later than the last observation."""

    time: float | None
    low: float | None
    high: float | None


def curve(observations: Sequence[Observation], alpha: float = 0.05) -> Curve:
    """The Kaplan-Meier curve of the share that has not reached the target.

    Args:
        observations: one per seed, at least one.
        alpha: 1 − coverage of the pointwise intervals.
    """
    from scipy import stats

    remaining = stats.ecdf(stats.CensoredData(**_censored(observations, _horizon(observations)))).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the bounds are undefined where the share is 0 or 1
        interval = remaining.confidence_interval(1 - alpha, method="log-log")
    shares = [float(share) for share in remaining.probabilities]
    lows, highs = [], []
    for share, low, high in zip(shares, interval.low.probabilities, interval.high.probabilities, strict=True):
        if share == 1:
            low, high = 1.0, 1.0
        elif share == 0:  # the shares cannot increase, so the last bound remains valid
            low, high = 0.0, highs[-1] if highs else 1.0
        lows.append(float(low))
        highs.append(float(high))
    return Curve(tuple(float(time) for time in remaining.quantiles), tuple(shares), tuple(lows), tuple(highs))


def median_time(observations: Sequence[Observation], alpha: float = 0.05) -> Estimate:
    """The time at which half of the seeds have crossed, and its interval.

    The interval contains the times at which the interval of the share contains one half (Brookmeyer and Crowley,
    Biometrics 38 (1982)).
    """
    estimated = curve(observations, alpha)

    def first(shares: Sequence[float]) -> float | None:
        return next((time for time, share in zip(estimated.times, shares, strict=True) if share <= 0.5 + 1e-12), None)

    return Estimate(first(estimated.shares), first(estimated.lows), first(estimated.highs))


def same_times(a: Sequence[Observation], b: Sequence[Observation]) -> float:
    """The p value of the log-rank test that two methods cross equally early (two-sided).

    Raises:
        ValueError: if no seed of either method crosses.
    """
    from scipy import stats

    if not any(seed.reached for seed in (*a, *b)):
        raise ValueError("no seed reached the target, so the methods cannot be compared")
    horizon = _horizon([*a, *b])
    first, second = (stats.CensoredData(**_censored(row, horizon)) for row in (a, b))
    return float(stats.logrank(first, second).pvalue)


def restricted_mean(observations: Sequence[Observation], budget: float, alpha: float = 0.05) -> Estimate:
    """The mean of the time to the target, where a time above the budget counts as the budget.

    It is the area below the Kaplan-Meier curve up to the budget, with the standard error of Greenwood's formula. Unlike
    the median, it exists with any number of misses.

    Args:
        observations: one per seed, at least one.
        budget: in the unit of `spent`.
        alpha: 1 − coverage of the interval, which is Gaussian and cut at 0 and the budget.

    Raises:
        ValueError: if the budget is not positive, or later than the curve is known.
    """
    last = max(seed.spent for seed in observations)
    if not 0 < budget < math.inf:
        raise ValueError(f"the budget must be positive and finite, not {budget:g}")
    estimated = curve(observations, alpha)
    if estimated.shares[-1] > 0 and budget > last:
        raise ValueError(f"the budget {budget:g} is later than the last observation, {last:g}")
    times = np.array([0.0, *(time for time in estimated.times if time < budget), budget])
    shares = np.array([1.0, *estimated.shares][: len(times) - 1])
    areas = np.diff(times) * shares
    mean = float(areas.sum())
    variance = 0.0
    for index, time in enumerate(times[1:-1], start=1):
        crossings = sum(seed.reached and seed.spent == time for seed in observations)
        at_risk = sum(seed.spent >= time for seed in observations)
        if crossings and at_risk > crossings:
            variance += float(areas[index:].sum()) ** 2 * crossings / (at_risk * (at_risk - crossings))
    half = NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt(variance)
    return Estimate(mean, max(0.0, mean - half), min(budget, mean + half))


def _horizon(observations: Sequence[Observation]) -> float:
    """The last finite time; runs that diverged count as missed at this time."""
    return max((seed.spent for seed in observations if math.isfinite(seed.spent)), default=1.0)


def _censored(observations: Sequence[Observation], horizon: float) -> dict[str, list[float]]:
    """The arguments of scipy's CensoredData."""
    return {
        "uncensored": [seed.spent for seed in observations if seed.reached],
        "right": [min(seed.spent, horizon) for seed in observations if not seed.reached],
    }
