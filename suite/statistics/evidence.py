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
# seeds and costs little at 5.
MIXTURE_VARIANCE = 25.0
LARGEST_T = 1e6  # beyond it, evidence grows no more


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
    with np.errstate(over="ignore"):  # infinite evidence is enough
        return growth**-0.5 * ((1 + square) / (1 + square / growth)) ** (n / 2)


def one_sided_evidence(t: float, n: int) -> float:
    """Evidence of a t statistic against the hypothesis that the mean is 0 or less.

    It is that of `t_evidence` with the prior of the effect size cut at 0: twice the evidence, times the probability
    that the effect is positive. This probability is that of a t distribution with n degrees of freedom below

        √n·r·√w / √(1 − w·r²),  r² = t²/(n − 1 + t²),  w = n·g/(1 + n·g)

    because the effect is Gaussian given the scale of the values, and that scale has a χ distribution with n degrees of
    freedom. A smaller mean lowers t at every n, so that the bound on the error holds for all means of 0 or less.

    Args:
        t: mean / (standard deviation / √n).
        n: number of values, at least 2.
    """
    from scipy.special import stdtr  # pyright: ignore[reportMissingTypeStubs]

    shrunk = n * MIXTURE_VARIANCE / (1 + n * MIXTURE_VARIANCE) * t * t / (n - 1 + t * t)
    positive = float(stdtr(n, math.copysign(math.sqrt(n * shrunk / (1 - shrunk)), t)))
    return 2 * positive * float(t_evidence(t, n))


@cache
def critical_t(n: int, alpha: float = 0.05) -> float:
    """Return the t statistic at which `one_sided_evidence` reaches 1/alpha; infinite if n values can never reach it.

    At alpha = 0.05, beside the usual critical value for one look:

        n             2     3     4     5     6     8     10    15    20    30
        any time      ∞   7.10  5.49  4.87  4.53  4.18  4.00  3.79  3.70  3.63
        one look    6.31  2.92  2.35  2.13  2.02  1.89  1.83  1.76  1.73  1.70
    """
    low, high = 0.0, LARGEST_T
    if n < 2 or one_sided_evidence(high, n) < 1 / alpha:
        return math.inf
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if one_sided_evidence(middle, n) < 1 / alpha else (low, middle)
    return high


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
    """Yield the counts of n values on one side, from n downwards, and the evidence of each."""
    tail = 2 ** (n + 1) - 1  # Σ C(n + 1, j) over j ≤ count
    for count in range(n, -1, -1):
        uniform = tail / ((n + 1) * math.comb(n, count))  # = 2^(n + 1) ∫ p^count (1 − p)^(n − count) dp on [1/2, 1]
        certain = 2**n if count == n else 0
        yield count, (uniform + certain) / 2
        tail -= math.comb(n + 1, count)
