"""The rules that the study of peeking compares, for many simulations at once: one per row, one seed per column.

The sequential rules are those of `suite/statistics/`; tests/statistics/test_peeking.py compares both.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.statistics.evidence import critical_count, critical_t

ALPHA = 0.05

Floats = NDArray[np.floating]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Share:
    """One row of the table: how often a rule decided.

    Attributes:
        study: "claim" (false claims).
        scenario: the distribution.
        rule: how it is decided.
        seeds: most seeds of a simulation; the rule is applied after each one, unless it says otherwise.
        share: of the simulations in which the rule ever decided for the claim.
        simulations: number of them.
    """

    study: str
    scenario: str
    rule: str
    seeds: int
    share: float
    simulations: int


def t_statistics(values: Floats) -> Floats:
    """The t statistics of the first 2, 3, … values of each simulation (one per row), against a mean of 0.

    Where all values are equal, the statistic is 0: nothing is decided, as in `mean_interval`.
    """
    n = np.arange(1, values.shape[1] + 1)
    mean = np.cumsum(values, axis=1) / n
    # deviations from the mean of all values avoid the cancellation of Σ x² − n·mean²
    centred = values - values.mean(axis=1, keepdims=True)
    squares = np.cumsum(centred**2, axis=1) - np.cumsum(centred, axis=1) ** 2 / n
    variance = squares[:, 1:] / (n[1:] - 1)
    known = variance > 1e-12 * np.maximum(1e-300, np.cumsum(values**2, axis=1)[:, 1:] / n[1:])
    return np.where(known, mean[:, 1:] / np.sqrt(np.where(known, variance, 1) / n[1:]), 0.0)


def rounded_bounds(values: Floats, resolution: float, alpha: float) -> tuple[Floats, Floats]:
    """The intervals by which `decide` judges the mean of the first 2, 3, … rounded values of each simulation."""
    most = values.shape[1]
    n = np.arange(2, most + 1)
    mean = np.cumsum(values, axis=1)[:, 1:] / n
    spread = np.stack([values[:, :count].std(axis=1, ddof=1) for count in n], axis=1)
    half = critical_ts(most, alpha) * (spread + resolution / 2 * np.sqrt(n / (n - 1))) / np.sqrt(n) + resolution / 2
    return mean - half, mean + half


def critical_ts(most: int, alpha: float) -> Floats:
    """The critical t statistic of `decide` for 2, 3, …, `most` values."""
    return np.array([critical_t(n, alpha) for n in range(2, most + 1)])


def sufficient(sides: Flags, alpha: float) -> Flags:
    """Whether the first 1, 2, … values exclude the median's hypothesis, as in `decide`.

    Args:
        sides: whether each value, along the last axis, lies on the side that counts.
        alpha: of one side.
    """
    needed = [critical_count(n, alpha) or n + 1 for n in range(1, sides.shape[-1] + 1)]
    return np.cumsum(sides, axis=-1, dtype=np.int64) >= np.array(needed)


def naive_ts(most: int, level: float) -> Floats:
    """The one-sided critical value of the usual t-test, for 2, 3, …, `most` values."""
    from scipy import stats

    return stats.t.ppf(1 - level, np.arange(1, most))


def generator(name: str) -> np.random.Generator:
    """Random numbers that belong to a name."""
    return np.random.default_rng(zlib.crc32(name.encode()))
