"""Which of two rows reaches a target earlier, and which row of a leaderboard leads, valid while seeds are added.

Two rows are compared by the ratio of their steps (or seconds) to the target, on the logarithmic scale. Where both
rows have a seed, its two runs are a pair, because they share initial weights and batches. A crossing is known to one
evaluation only; where an observation states how early it may have been, the intervals are that much wider.

The intervals are those of `suite/statistics/sequential.py`, with their assumptions: pairs are independent, and which
seeds a row has does not depend on their outcomes. Run the seeds of a row in order (0, 1, 2, …), and include all of
them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite.statistics.sequential import (
    Interval,
    decide,
    exponential,
    mean_interval,
    median_interval_sequential,
    seeds_for_share,
)
from suite.statistics.summary import Observation

Row = Mapping[int, Observation]  # by seed


@dataclass(frozen=True)
class Separation:
    """The ratio of two rows' steps (or seconds) to the target.

    Attributes:
        ratio: of the first row to the second: the geometric mean over pairs, or, with missed targets, the median. None
            without pairs, or if the median pair has a missed target.
        low: lower bound of the ratio, valid while seeds are added; 0 if there is none.
        high: upper bound; infinite if there is none.
        separable: whether the interval excludes 1.
        seeds_needed: about how many more seeds of both rows would separate them, if ratio and spread stayed as they
            are. 0 if separable, None if that is more than 200 or unknown.
    """

    ratio: float | None
    low: float
    high: float
    separable: bool
    seeds_needed: int | None


def find_separation(a: Row, b: Row, alpha: float = 0.05, *, resolution: float = 0.0) -> Separation:
    """Compare two rows.

    With probability 1 − alpha, the interval contains the true ratio at every number of seeds. Its method follows from
    the pairs: the mean of Gaussian logarithms, or, if a pair has a missed target, the median without an assumption on
    the distribution, which needs 6 pairs. Two rows change from the first method to the second at most once, with their
    first miss. If both methods were used while seeds were added, the probability of an error is at most 2·alpha.

    If the rows share no seed, the i-th seed of one is paired with the i-th of the other. The differences of independent
    values, paired in an order that does not depend on them, are independent values too; the two rows may have different
    spreads.

    Args:
        a: the first row, by seed.
        b: the second row.
        alpha: probability that the interval ever excludes the true ratio.
        resolution: steps (or seconds) between evaluations, for observations that do not state their `earliest`: a
            crossing lies up to this much earlier than the evaluation that saw it. If all pairs have the same ratio,
            nothing is separable without one of the two.
    """
    paired = list(compare_pairs(a, b))
    bounds = [_log_ratio(first, second, resolution) for first, second in paired]
    if all(math.isfinite(bound.low) and math.isfinite(bound.high) for bound in bounds):
        seen = [_log_quotient(first.spent, second.spent) for first, second in paired]
        return _by_mean(seen, bounds, alpha)
    return _by_median(bounds, alpha)


def compare_pairs(a: Row, b: Row) -> Iterator[tuple[Observation, Observation]]:
    """Return the observations that are compared: of equal seeds, or in the order of seeds if the rows share none."""
    shared = sorted(a.keys() & b.keys())
    if shared:
        return ((a[seed], b[seed]) for seed in shared)
    return zip((a[seed] for seed in sorted(a)), (b[seed] for seed in sorted(b)), strict=False)


def find_leader(rows: Sequence[Row], alpha: float = 0.05) -> int | None:
    """Find the row that is separable from every other one; None if there is no such row, or only one.

    The probability that a row is ever named that is not truly best is at most alpha, although the data choose the row,
    and whenever seeds are added to any row. Proof: let b be a truly best row of k. Naming another row i requires that
    the interval of the ratio of i to b lies below 1, although the true ratio is 1 or more, and so excludes the truth.
    With level alpha / (k − 1), this ever happens for one i with probability at most alpha / (k − 1), and for any of
    the k − 1 other rows with probability at most alpha (the union bound). Comparisons that do not involve b need no
    correction. The bound is for one set of rows; a row that is added later makes a new set.
    With misses, see `separation` for comparisons that change their method.

    Args:
        rows: the observations of each row, by seed.
        alpha: probability of ever naming a wrong leader.
    """
    best = tied_with_leader(rows, alpha)
    if len(rows) < 2 or len(best) != 1:
        return None
    level = _level(rows, alpha)
    others = (row for index, row in enumerate(rows) if index != best[0])
    return best[0] if all(find_separation(rows[best[0]], row, level).high < 1 for row in others) else None


def tied_with_leader(rows: Sequence[Row], alpha: float = 0.05) -> tuple[int, ...]:
    """Return the rows that may be best: those from which no other row is separable as the earlier one.

    They include every truly best row, at all times, with probability at least 1 − alpha if there is one such row; the
    proof is that of `leader`. (If several rows are equally best, each is included with probability at least 1 −
    alpha.)

    Args:
        rows: the observations of each row, by seed.
        alpha: probability of ever leaving out the best row.
    """
    level = _level(rows, alpha)
    beaten: set[int] = set()
    for first in range(len(rows)):
        for second in range(first + 1, len(rows)):
            compared = find_separation(rows[first], rows[second], level)
            if compared.separable:
                beaten.add(first if compared.low > 1 else second)
    return tuple(index for index in range(len(rows)) if index not in beaten)


def _level(rows: Sequence[Row], alpha: float) -> float:
    """Return the level of one comparison."""
    return alpha / max(1, len(rows) - 1)


def _log_ratio(a: Observation, b: Observation, resolution: float) -> Interval:
    """Return the logarithms of ratios that agree with a pair; equal bounds if nothing is missed or rounded."""
    if not a.reached and not b.reached:
        return Interval(-math.inf, math.inf)
    if not a.reached:
        return Interval(_log_quotient(a.spent, b.spent), math.inf)
    if not b.reached:
        return Interval(-math.inf, _log_quotient(a.spent, b.spent))
    earliest_a, earliest_b = (
        max(0.0, seed.spent - resolution) if seed.earliest is None else seed.earliest for seed in (a, b)
    )
    return Interval(_log_quotient(earliest_a, b.spent), _log_quotient(a.spent, earliest_b))


def _log_quotient(numerator: float, denominator: float) -> float:
    if numerator == denominator:
        return 0.0
    if numerator == 0 or math.isinf(denominator):
        return -math.inf
    return math.inf if denominator == 0 or math.isinf(numerator) else math.log(numerator / denominator)


def _by_mean(seen: Sequence[float], bounds: Sequence[Interval], alpha: float) -> Separation:
    """Compare by the mean of logarithms.

    Args:
        seen: the logarithm of each pair's ratio, of the evaluations that saw the crossings.
        bounds: between which that of the crossings lies.
        alpha: probability of a wrong interval.
    """
    if not bounds:
        return Separation(None, 0.0, math.inf, False, None)
    logs = [(bound.low + bound.high) / 2 for bound in bounds]
    rounding = max(bound.high - bound.low for bound in bounds)
    interval = mean_interval(logs, alpha, resolution=rounding)
    separable = not interval.low <= 0 <= interval.high
    return Separation(
        ratio=math.exp(sum(seen) / len(seen)),
        low=exponential(interval.low),
        high=exponential(interval.high),
        separable=separable,
        seeds_needed=0 if separable else decide(logs, None, 0.0, alpha=alpha, resolution=rounding).seeds_needed,
    )


def _by_median(bounds: Sequence[Interval], alpha: float) -> Separation:
    """Compare by the median, where missed targets give bounds only."""
    lows, highs = sorted(bound.low for bound in bounds), sorted(bound.high for bound in bounds)
    interval = median_interval_sequential(lows, alpha, highs=highs)
    separable = not interval.low <= 0 <= interval.high
    n = len(bounds)
    share = max(sum(low > 0 for low in lows), sum(high < 0 for high in highs)) / n
    low, high = lows[(n - 1) // 2], highs[n // 2]  # bounds of the two middle values
    return Separation(
        ratio=math.exp((low + high) / 2) if math.isfinite(low) and math.isfinite(high) else None,
        low=exponential(interval.low),
        high=exponential(interval.high),
        separable=separable,
        seeds_needed=0 if separable else seeds_for_share(share, n, alpha),
    )
