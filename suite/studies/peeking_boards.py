"""The leaderboards of the study of peeking: boards without a true leader, and how often a rule names one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.studies.peeking_rules import (
    ALPHA,
    Flags,
    Floats,
    Share,
    critical_ts,
    generator,
    naive_ts,
    sufficient,
    t_statistics,
)

BOARDS = 1_000
ROWS = 10
FIRST_SEEDS, LAST_SEEDS = 3, 10  # of a row
SPREAD = 0.05  # of the logarithm of steps; the rules do not depend on it


@dataclass(frozen=True)
class Board:
    """A leaderboard without a true leader.

    Attributes:
        misses: share of runs that miss the target.
        slower: the last 8 of 10 rows need this factor more steps; the first two are equal.
    """

    misses: float = 0.0
    slower: float = 1.0


BOARD_SCENARIOS = {
    "ten equal rows": Board(),
    "two equal rows, eight slower": Board(slower=1.5),
    "ten equal rows, a fifth of the runs miss": Board(misses=0.2),
}


def boards(scenario: str, simulations: int = BOARDS) -> Iterator[Share]:
    """Leaderboards without a true leader: how often a rule ever names one.

    Every row starts with 3 seeds. Then the row with the least mean and its nearest rival receive seeds in turn, up to
    10, and all rules are applied after each one.

    Args:
        scenario: name of a leaderboard.
        simulations: number of them.
    """
    board = BOARD_SCENARIOS[scenario]
    rng = generator(f"board {scenario}")
    logs = SPREAD * rng.standard_normal((simulations, ROWS, LAST_SEEDS))
    logs[:, 2:] += math.log(board.slower)
    logs = np.where(rng.random(logs.shape) < board.misses, np.inf, logs)
    sequential, uncorrected = wins(logs, ALPHA / (ROWS - 1)), wins(logs, ALPHA)
    named = {"leader": np.zeros(simulations, bool), "leader, not corrected": np.zeros(simulations, bool)}
    second = "t-test against the second until p < .05"
    if not board.misses:
        named[second] = np.zeros(simulations, bool)
    for counts in added_seeds(logs):
        named["leader"] |= leads(sequential, counts)
        named["leader, not corrected"] |= leads(uncorrected, counts)
        if second in named:
            named[second] |= _beats_second(logs, counts)
    for rule, flags in named.items():
        yield Share("board", scenario, rule, LAST_SEEDS, float(flags.mean()), simulations)
    if board == Board():
        records = float(_false_record(logs[..., :FIRST_SEEDS]).mean())
        yield Share("board", scenario, "t-test against the last record, p < .25", FIRST_SEEDS, records, simulations)


def wins(logs: Floats, alpha: float) -> Flags:
    """Whether one row is separable as the earlier one, as `leaders.find_separation` decides.

    Args:
        logs: logarithm of steps, of shape (boards, rows, seeds); infinite if the target was missed.
        alpha: the level of one comparison.

    Returns:
        Of shape (boards, row, other row, number of their common seeds − 1).
    """
    number, rows, seeds = logs.shape
    result = np.zeros((number, rows, rows, seeds), bool)
    critical = critical_ts(seeds, alpha)
    for row in range(rows):
        for other in range(rows):
            if row == other:
                continue
            first, second = logs[:, row], logs[:, other]
            earlier = first < second  # also if only the second one misses
            missed = np.cumsum(np.isinf(first) | np.isinf(second), axis=1) > 0
            with np.errstate(invalid="ignore"):
                difference = np.nan_to_num(first - second, nan=0.0, posinf=0.0, neginf=0.0)
            by_mean = np.zeros((number, seeds), bool)
            by_mean[:, 1:] = t_statistics(difference) < -critical
            by_median = sufficient(earlier, alpha)
            result[:, row, other] = np.where(missed, by_median, by_mean)
    return result


def leads(wins: Flags, counts: NDArray[np.integer]) -> Flags:
    """Whether a board has a row that wins against every other one.

    Args:
        wins: from the function of this name.
        counts: seeds of each row, of shape (boards, rows).
    """
    common = np.minimum(counts[:, :, None], counts[:, None, :])
    now = np.take_along_axis(wins, common[..., None] - 1, axis=-1)[..., 0]
    rows = counts.shape[1]
    best = np.all(now | np.eye(rows, dtype=bool), axis=2)
    return np.any(best, axis=1)


def added_seeds(logs: Floats) -> Iterator[NDArray[np.integer]]:
    """The seeds of each row at every look: the first row of each board and its nearest rival receive them in turn."""
    number, rows, seeds = logs.shape
    counts = np.full((number, rows), FIRST_SEEDS)
    board = np.arange(number)
    yield counts
    for look in range(2 * (seeds - FIRST_SEEDS) * rows):
        order = np.argsort(_means(logs, counts), axis=1)
        chosen = order[:, (look + 1) % 2]  # the rival first
        counts = counts.copy()
        counts[board, chosen] = np.minimum(counts[board, chosen] + 1, seeds)
        yield counts


def _means(logs: Floats, counts: NDArray[np.integer]) -> Floats:
    """The mean of each row's seeds so far; a missed target counts as a large value."""
    finite = np.where(np.isinf(logs), 1.0, logs)
    return np.take_along_axis(np.cumsum(finite, axis=2), counts[..., None] - 1, axis=2)[..., 0] / counts


def _beats_second(logs: Floats, counts: NDArray[np.integer]) -> Flags:
    """Whether a one-sided paired t-test of the least mean against the second least has p < .05."""
    order = np.argsort(_means(logs, counts), axis=1)
    board = np.arange(len(logs))
    best, second = order[:, 0], order[:, 1]
    common = np.minimum(counts[board, best], counts[board, second])
    with np.errstate(invalid="ignore"):
        t = t_statistics(np.nan_to_num(logs[board, best] - logs[board, second], posinf=0.0, neginf=0.0))
    return t[board, common - 2] < -naive_ts(logs.shape[2], ALPHA)[common - 2]


def _false_record(logs: Floats) -> Flags:
    """Whether a row is ever accepted as a record because a one-sided t-test against the last record has p < .25.

    The rule of openai/parameter-golf, pull request 1902. The rows arrive in order, each with the same seeds.
    """
    board = np.arange(len(logs))
    record = np.zeros(len(logs), int)
    threshold = naive_ts(logs.shape[2], 0.25)[-1]
    for row in range(1, logs.shape[1]):
        better = t_statistics(logs[:, row] - logs[board, record])[:, -1] < -threshold
        record = np.where(better, row, record)
    return record > 0
