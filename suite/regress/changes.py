"""Finds where the level of a series changes, with a threshold from that very series.

The statistic is the largest standardised difference of two means (CUSUM; Csörgő and Horváth 1997, Limit Theorems in
Change-Point Analysis, section 2.1). Its threshold is a quantile over a circular block bootstrap of the series (Politis
and Romano 1992): blocks keep the dependence of neighbours, and their random order removes changes. Segments are split
again until nothing exceeds the threshold (binary segmentation, Vostrikova 1981). Two changes in opposite directions
hide each other in a whole segment, so that its halves and its middle are tested, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

LEAST = 5  # values on each side of a change
LEVEL = 0.004  # of each test; with BIAS, chosen for the error rates that `python tests/calibration changes` prints
SAMPLES = 999  # of the bootstrap
BIAS = 6.0  # is added to the estimated correlation, over the number of values: short series seem less correlated
STRONGEST = 0.95  # correlation that is believed


@dataclass(frozen=True)
class Change:
    """A change of level.

    Attributes:
        index: of the first value of the new level.
        before: median of the segment before.
        after: median of the segment after.
        p: share of bootstrap samples that change as much.
    """

    index: int
    before: float
    after: float
    p: float


def find_changes(values: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> list[Change]:
    """Find the changes of a series of positive values, in order.

    Args:
        values: in the order of time.
        level: of each test.
        seed: of the bootstrap.
    """
    logs, rng = np.log(np.asarray(values, dtype=float)), np.random.default_rng(seed)
    places: dict[int, float] = {}
    segments = [(0, len(logs))]
    while segments:
        start, end = segments.pop()
        tested = ((a, _split(logs[a:b], level, rng)) for a, b in _windows(start, end))
        first = next(((a + split[0], split[1]) for a, split in tested if split), None)
        if first:
            index, places[first[0]] = first
            segments += [(start, index), (index, end)]
    if not places:
        return []
    edges = [0, *sorted(places), len(logs)]
    medians = [float(np.exp(np.median(logs[a:b]))) for a, b in pairwise(edges)]
    return [Change(index, medians[n], medians[n + 1], places[index]) for n, index in enumerate(edges[1:-1])]


def _windows(start: int, end: int) -> list[tuple[int, int]]:
    """A segment, its halves and its middle."""
    quarter = (end - start) // 4
    middle = start + 2 * quarter
    return [(start, end), (start, middle), (middle, end), (start + quarter, end - quarter)]


def _split(segment: np.ndarray, level: float, rng: np.random.Generator) -> tuple[int, float] | None:
    """Where a segment changes, and the p-value; None if it does not."""
    count = len(segment)
    if count < 2 * LEAST or not np.ptp(segment):
        return None
    statistics = _statistics(segment[None])[0]
    place = int(statistics.argmax())
    length = _block(segment, place + LEAST)
    starts = rng.integers(0, count, (SAMPLES, -(-count // length)))
    order = (starts[:, :, None] + np.arange(length)) % count
    samples = segment[order.reshape(SAMPLES, -1)[:, :count]]
    larger = int((_statistics(samples).max(1) >= statistics[place]).sum())
    p = (1 + larger) / (1 + SAMPLES)
    return (place + LEAST, p) if p <= level else None


def _block(segment: np.ndarray, place: int) -> int:
    """Compute the block's length that is best for an autoregressive series' mean (Carlstein 1986, section 4).

    The correlation of neighbours is estimated with the levels before and after `place` removed.
    """
    rest, count = segment.copy(), len(segment)
    for part in (rest[:place], rest[place:]):
        part -= part.mean()
    squares = float(rest @ rest)
    estimate = (float(rest[1:] @ rest[:-1]) / squares if squares else 0.0) + BIAS / count
    correlation = min(max(estimate, 0.0), STRONGEST)
    best = (2 * correlation**2 / (1 - correlation**2) ** 2 * count) ** (1 / 3)
    return max(1, min(math.ceil(best), count // 3))


def _statistics(series: np.ndarray) -> np.ndarray:
    """Return the statistic for each place with LEAST values on both sides, (series, places)."""
    count = series.shape[1]
    before = np.arange(1, count)
    sums = np.cumsum(series - series.mean(1, keepdims=True), 1)[:, :-1]
    return (np.abs(sums) / np.sqrt(before * (count - before) / count))[:, LEAST - 1 : count - LEAST]
