"""Pairs the runs of two methods: one value for each seed, averaged over the frameworks that both methods ran in.

The two runs of a pair share initial weights and batches. All rows of a ladder are rounded, capped and averaged by the
same rule, so that rows that do not differ stay interchangeable.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from suite.statistics.flips import ENDLESS, Floats, Ratio, ratio_interval
from suite.statistics.summary import Observation

Row = Mapping[int, Observation]  # by seed
Method = Mapping[str, Row]  # by framework
MOST_CELL = 2.0  # spreads: for wider cells, midpoints cover too little (docs/statistics.md)


@dataclass(frozen=True)
class Grid:
    """Evaluations that all rows of a ladder share.

    Attributes:
        budget: the smallest number of steps that a row may spend.
        step: steps between evaluations.
    """

    budget: float
    step: float

    def read(self, seen: Observation) -> float:
        """Return the logarithm of the steps; a miss, or a crossing beyond the budget, counts as the next evaluation."""
        inside = seen.reached and seen.spent <= self.budget
        return math.log(max(1.0, seen.spent if inside else self.budget + self.step))


def find_differences(first: Method, second: Method, grid: Grid) -> dict[int, float]:
    """Return the differences of the logarithms of two methods' steps, by the seeds that they share."""
    by_seed: dict[int, list[float]] = {}
    for framework in sorted(first.keys() & second.keys()):
        for seed in first[framework].keys() & second[framework].keys():
            difference = grid.read(first[framework][seed]) - grid.read(second[framework][seed])
            by_seed.setdefault(seed, []).append(difference)
    return {seed: fmean(by_seed[seed]) for seed in sorted(by_seed)}


def tabulate_values(methods: Sequence[Method], frameworks: Sequence[str], seeds: Sequence[int], grid: Grid) -> Floats:
    """Return the values of a registered design, of shape (seeds, methods); NaN where a run is absent."""

    def value(method: Method, seed: int) -> float:
        seen = [method.get(framework, {}).get(seed) for framework in frameworks]
        return float(np.mean([math.nan if one is None else grid.read(one) for one in seen]))

    return np.array([[value(method, seed) for method in methods] for seed in seeds]).reshape(len(seeds), len(methods))


def compare_methods(first: Method, second: Method) -> Ratio:
    """Return the ratio of the first method's steps (or seconds) to the second's.

    A crossing lies between the evaluation that saw it and the one before. Midpoints are used where these cells are at
    most two spreads of a row wide; otherwise each end of the interval takes the worse end of the cell.
    """
    pairs: dict[int, list[tuple[Observation, Observation]]] = {}
    for framework in sorted(first.keys() & second.keys()):
        for seed in sorted(first[framework].keys() & second[framework].keys()):
            pairs.setdefault(seed, []).append((first[framework][seed], second[framework][seed]))
    lows = [_average(_least_log_ratio(a, b) for a, b in pairs[seed]) for seed in sorted(pairs)]
    highs = [_average(-_least_log_ratio(b, a) for a, b in pairs[seed]) for seed in sorted(pairs)]
    if len(pairs) > 1 and np.abs([lows, highs]).max() < ENDLESS / 100:
        middles = [_average(_middle(a) - _middle(b) for a, b in pairs[seed]) for seed in sorted(pairs)]
        # a robust spread of one row, which late seeds do not widen; 1.4826 makes it that of Gaussian values
        spread = 1.4826 * float(np.median(np.abs(np.array(middles) - np.median(middles)))) / math.sqrt(2)
        if max(high - low for low, high in zip(lows, highs, strict=True)) / 2 <= MOST_CELL * spread:
            lows = highs = middles
    return ratio_interval(lows, highs)


def _average(values: Iterable[float]) -> float:
    return float(np.mean(np.clip(list(values), -ENDLESS, ENDLESS)))


def _least_log_ratio(a: Observation, b: Observation) -> float:
    """Return the logarithm of the least ratio of a's steps to b's that agrees with what was seen."""
    return -ENDLESS if not b.reached else _earliest(a) - _log(b.spent)


def _earliest(seen: Observation) -> float:
    """Return the logarithm of the earliest possible crossing; of what was spent, for a miss."""
    return _log(seen.spent if seen.earliest is None else seen.earliest)


def _middle(seen: Observation) -> float:
    return _log((seen.spent + (seen.spent if seen.earliest is None else seen.earliest)) / 2)


def _log(number: float) -> float:
    return min(math.log(number), ENDLESS) if number > 0 else -ENDLESS
