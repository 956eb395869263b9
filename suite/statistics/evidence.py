"""E-processes: the evidence that values contain against a hypothetical mean or median, at any number of values.

The evidence starts at 1, is never negative, and does not grow on average if the hypothesis is true. By Ville's
inequality (1939) it then ever reaches 1/alpha with probability at most alpha. `suite/statistics/sequential.py` makes
intervals of it.
"""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

# Variance of the mixture over effect sizes (mean − hypothesis) / spread in `t_evidence`. Any positive constant is valid
# if it is fixed before the seeds are seen; it determines at which effects few seeds decide. With 1, three seeds can
# never decide at 5 %: the evidence is at most (1 + 3·g)^((3 − 1) / 2), which is 4, and 20 is needed. The value 25 is
# the variance of effects of five spreads, such as a difference of 20 % at a spread of 4 %. It is nearly optimal for 3
# seeds (critical t 10.1; 10.05 at g = 30) and costs little at 5 (5.8; the least is 5.3, at g = 5).
MIXTURE_VARIANCE = 25.0


def t_evidence(t: NDArray[np.floating] | float, n: NDArray[np.integer] | int) -> NDArray[np.floating] | float:
    """Evidence of a t statistic against the hypothesis that the mean is 0: the e-process of the sequential t-test.

    It is the likelihood ratio of the values up to scale (the maximal invariant), with the effect size drawn from
    N(0, g) under the alternative:

        (1 + n·g)^(−1/2) · ((1 + t²/(n − 1)) / (1 + t²/((n − 1)·(1 + n·g))))^(n/2)

    Sources: Lai, "On confidence sequences", Annals of Statistics 4 (1976); Wang and Ramdas, "Anytime-valid t-tests and
    confidence sequences for Gaussian means with unknown variance" (2023).

    Args:
        t: mean / (standard deviation / √n), with n − 1 degrees of freedom.
        n: number of values, at least 2.
    """
    growth = 1 + n * MIXTURE_VARIANCE
    square = np.square(t) / (n - 1)
    return growth**-0.5 * ((1 + square) / (1 + square / growth)) ** (n / 2)


def critical_t(n: int, alpha: float = 0.05) -> float:
    """Return the t statistic at which `t_evidence` reaches 1/alpha; infinite if n values can never reach it.

    At alpha = 0.05, beside the usual critical value for one look:

        n             2     3      4     5     6     8     10    15    20    30
        any time      ∞   10.13  6.78  5.76  5.24  4.71  4.44  4.13  4.01  3.90
        one look    12.71  4.30  3.18  2.78  2.57  2.36  2.26  2.14  2.09  2.05
    """
    if n < 2:
        return math.inf
    growth = 1 + n * MIXTURE_VARIANCE
    ratio = (math.sqrt(growth) / alpha) ** (2 / n)
    if ratio >= growth:
        return math.inf
    return math.sqrt((n - 1) * (ratio * (growth - 1) / (growth - ratio) - 1))


@cache
def critical_count(n: int, alpha: float = 0.05) -> int | None:
    """How many of n values must lie above a number to exclude, at level alpha, that the median is at most this number.

    After n values, `count` of them above, the evidence is a mixture of bets that the next one lies above, with
    probability p (Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference",
    Statistical Science 38 (2023), section on coin tossing):

        ∫ (2p)^count · (2·(1 − p))^(n − count) dP(p)

    If the median is at most the number, a value lies above it with probability 1/2 or less, whatever the past. Then no
    factor exceeds 1 in expectation for p ≥ 1/2, and the evidence is a supermartingale. P is half a point mass at 1
    and half the uniform distribution on [1/2, 1]: with the point mass, 6 values on one side suffice at alpha = 0.025
    (the uniform distribution alone needs 8), and 6 is also what the sign test for one look needs.

    Returns:
        The smallest sufficient count; None if even n are too few.
    """
    sufficient = None
    for count, evidence in sign_evidence(n):
        if evidence < 1 / alpha:
            break
        sufficient = count
    return sufficient


def sign_evidence(n: int) -> Iterator[tuple[int, float]]:
    """Yield the counts of n values on one side that are more than half, from n downwards, and the evidence of each."""
    tail = 2 ** (n + 1) - 1  # Σ C(n + 1, j) over j ≤ count
    for count in range(n, n // 2, -1):
        uniform = tail / ((n + 1) * math.comb(n, count))  # = 2^(n + 1) ∫ p^count (1 − p)^(n − count) dp on [1/2, 1]
        certain = 2**n if count == n else 0
        yield count, (uniform + certain) / 2
        tail -= math.comb(n + 1, count)
