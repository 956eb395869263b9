"""Rule B: which rows are earlier, while seeds are added at any time and somebody looks after each.

For each pair, the *evidence* that one row is earlier starts at 1 and does not grow on average if differences are
symmetric around 0. By Ville's inequality (1939) it ever reaches 1/α with probability at most α. Half of the error is
for the question which rows can be best, half for the pairs. docs/statistics.md has the measured errors and the power.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from suite.statistics.evidence import sign_evidence
from suite.statistics.flips import ROUNDING, Floats
from suite.statistics.ranking import Flags, Ranking

ALPHA = 0.05  # probability of any wrong claim on one ladder; conventional
BETS = (4.0, 8.0, 16.0, 32.0)  # per unit of log ratio, fixed in advance: 4 suits a ratio of 1.25, 32 one of 1.03
LEAST_SEEDS = 6  # after five, the evidence is 32 at most, and 2/α is 40

Differences = Mapping[tuple[int, int], Sequence[float]]  # of each pair (i, j), i < j: row i minus row j, in any order


def find_evidence(differences: Floats) -> Floats:
    """Return the evidence that the differences are below 0. It depends on the set of differences, not on their order.

    It is half the mean over the bets λ of ∏ exp(−λd)/cosh(λd), which is 1 on average for a symmetric d, and half the
    evidence of the signs alone (`suite/statistics/evidence.py`), where differences of 0 count for neither side.

    Args:
        differences: of shape (pairs, seeds).

    Returns:
        One number for each pair.
    """
    d = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    with np.errstate(over="ignore"):
        sized = [np.exp((math.log(2) - bet * d - np.logaddexp(bet * d, -bet * d)).sum(axis=1)) for bet in BETS]
    signs = tabulate_signs(d.shape[1])[(d != 0).sum(axis=1), (d < 0).sum(axis=1)]
    return (np.mean(sized, axis=0) + signs) / 2


@cache
def tabulate_signs(most: int) -> Floats:
    """Return a table whose element [n, count] is the evidence of n differences, `count` of them below 0.

    Args:
        most: largest n.
    """
    table = np.ones((most + 1, most + 1))
    for n in range(1, most + 1):
        for count, evidence in sign_evidence(n):
            table[n, count] = evidence
    return table


def rank_anytime(rows: int, differences: Differences, alpha: float = ALPHA) -> Ranking:
    """Rank rows by the present evidence of their pairs.

    A pair is claimed if its evidence exceeds 1/level by more than all other pairs together lack: this is the closed
    test of averages of evidence (Vovk and Wang, "E-values: calibration, combination and applications", Annals of
    Statistics 49 (2021)). A row cannot be best if the mean evidence that other rows are earlier reaches 1/level; if one
    row is left, it leads.

    Args:
        rows: number of rows.
        differences: of the pairs that share seeds: logarithms of steps, finite.
        alpha: probability of ever making a wrong claim.
    """
    bar = 2 / alpha  # of half of the error
    evidence = np.ones((rows, rows))
    by_seeds: dict[int, list[tuple[int, int]]] = {}
    for pair, values in differences.items():
        by_seeds.setdefault(len(values), []).append(pair)
    for pairs in by_seeds.values():
        first, second = np.array(pairs).T
        values = np.array([differences[pair] for pair in pairs])
        evidence[first, second], evidence[second, first] = find_evidence(values), find_evidence(-values)
    np.fill_diagonal(evidence, 0.0)
    wins = _claim_pairs(evidence, bar)
    possible = np.flatnonzero(evidence.sum(axis=0) < bar * max(1, rows - 1))
    if len(possible) == 1:
        wins[possible[0]], wins[:, possible[0]] = np.arange(rows) != possible[0], False
    return Ranking(wins)


def _claim_pairs(evidence: Floats, bar: float) -> Flags:
    both = (evidence + evidence.T) / 2
    lacking = np.maximum(0.0, bar - both)
    total = float(np.triu(lacking, 1).sum())
    return (both - bar >= total - lacking) & (evidence > evidence.T)
