"""Share of ones among independent values of 0 and 1, with an interval that stays valid while values are added."""

import math
from bisect import bisect_left
from collections.abc import Callable

from suite.statistics.sequential import Interval

BISECTIONS = 60  # halve the unit interval down to the spacing of float64


def share_interval(ones: int, n: int, alpha: float = 0.05) -> Interval:
    """Confidence sequence of a probability.

    With probability 1 − alpha, the interval contains the probability at every number of values; alpha / 2 is spent on
    each side. The evidence against "p or less" is the ratio of the values' likelihood, averaged over Jeffreys' prior
    Beta(1/2, 1/2) above p, to that under p (Robbins, "Statistical methods related to the law of the iterated
    logarithm", Annals of Mathematical Statistics 41 (1970)). If p is true, it is a martingale that starts at 1. The
    interval contains each p with evidence below 2/alpha on both sides.

    Args:
        ones: number of ones.
        n: number of values, at least 1.
        alpha: probability that the interval ever excludes the truth.

    Raises:
        ValueError: if `ones` does not lie between 0 and n, or n is 0.
    """
    if not 0 <= ones <= n or n == 0:
        raise ValueError(f"{ones} of {n} is no share")
    limit = math.log(2 / alpha)
    low = 0.0 if ones == 0 else _edge(ones / n, 0.0, lambda p: _log_evidence(ones, n, p) >= limit)
    high = 1.0 if ones == n else _edge(ones / n, 1.0, lambda p: _log_evidence(n - ones, n, 1 - p) >= limit)
    return Interval(low, high)


def _log_evidence(ones: int, n: int, p: float) -> float:
    """Return the logarithm of the evidence against a probability of p or less, for p in (0, 1)."""
    from scipy.special import betainc  # pyright: ignore[reportMissingTypeStubs]

    mixture = _log_beta(ones + 0.5, n - ones + 0.5) - _log_beta(0.5, 0.5)
    above = 1 - betainc(ones + 0.5, n - ones + 0.5, p), 1 - betainc(0.5, 0.5, p)  # of the posterior and the prior
    if min(above) <= 0:
        return -math.inf
    return mixture - ones * math.log(p) - (n - ones) * math.log1p(-p) + math.log(above[0] / above[1])


def find_least_share_seeds(above: float, below: float, alpha: float = 0.05) -> int | None:
    """Return the fewest values with which a share can lie in a region; None if that is more than 1,000.

    Args:
        above: lower bound of the region; −∞ if there is none.
        below: upper bound; ∞ if there is none.
        alpha: of one side.
    """
    limit = math.log(1 / alpha)
    for n in range(1, 1001):
        # the fewest ones that exclude all shares up to `above` leave the most room below the other bound
        ones = 0 if above < 0 else bisect_left(range(n + 1), limit, key=lambda ones: _log_evidence(ones, n, above))
        if ones <= n and (below > 1 or _log_evidence(n - ones, n, 1 - below) >= limit):
            return n
    return None


def _edge(inside: float, outside: float, excluded: Callable[[float], bool]) -> float:
    """Return the boundary between a value that is not excluded and one that is."""
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        if excluded(middle):
            outside = middle
        else:
            inside = middle
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
