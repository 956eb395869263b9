"""Records of modded-nanogpt's track 3, judged by the board's own rule for pairs (README of the track)."""

import math
from itertools import pairwise
from typing import Literal, NamedTuple


class Row(NamedTuple):
    """A row of the table: steps, mean validation loss, and the number of runs."""

    steps: int
    loss: float
    runs: int


PER_STEP = 0.0045 / 100  # loss that a step is worth
LIMIT = 0.004  # of the difference in loss, for two runs of one seed each
SPREAD = 0.0013  # standard deviation of a run's loss
# "Results", KellerJordan/modded-nanogpt at f411b3d346aa, records/track_3_optimization/README.md
RECORDS = {
    1: Row(3600, 3.2777, 1),
    3: Row(3500, 3.2767, 1),
    5: Row(3325, 3.2782, 10),
    9: Row(3250, 3.2771, 8),
    11: Row(3225, 3.2785, 16),
    13: Row(3210, 3.2785, 10),
    14: Row(3150, 3.2776, 4),
    16: Row(3125, 3.2784, 8),
    20: Row(3030, 3.2790, 30),
    29: Row(2990, 3.2787, 11),
    30: Row(2930, 3.2784, 16),
    34: Row(2925, 3.2781, 8),
    38: Row(2900, 3.2786, 9),
    40: Row(2890, 3.2788, 16),
    41: Row(2875, 3.2790, 20),
    42: Row(2860, 3.2789, 16),
    43: Row(2850, 3.2786, 13),
    44: Row(2750, 3.2789, 20),
    45: Row(2720, 3.2786, 10),
    46: Row(2690, 3.2783, 8),
}
OTHERS = {6: Row(3375, 3.2788, 20), 8: Row(3250, 3.2778, 10), 12: Row(3325, 3.2790, 20)}


def measure(
    seed: int, *, quantity: Literal["share", "difference", "p-value"], first: int = 0, second: int = 0
) -> float:
    """Return a number of the board's rule for two results.

    The rule: (difference of the mean losses + that of the steps times 0.0045 / 100) / sqrt(1/n1 + 1/n2) >= 0.004.

    Args:
        seed: unused.
        quantity: `share`: of the records that meet the rule against the record before. `difference`: the left side of
            the rule, for a row against an earlier one. `p-value`: of this difference, one-sided, with a standard
            deviation of 0.0013.
        first: the earlier row; 0 for `share`.
        second: the later row; 0 for `share`.
    """
    if quantity == "share":
        return sum(compare(*pair) >= LIMIT for pair in pairwise(RECORDS.values())) / (len(RECORDS) - 1)
    better = compare((RECORDS | OTHERS)[first], (RECORDS | OTHERS)[second])
    return better if quantity == "difference" else math.erfc(better / SPREAD / 2**0.5) / 2


def compare(first: Row, second: Row) -> float:
    """Return by how much the second row is better, in loss for two runs of one seed."""
    gained = first.loss - second.loss + (first.steps - second.steps) * PER_STEP
    return gained / (1 / first.runs + 1 / second.runs) ** 0.5
