"""The share of ones among independent values of 0 and 1, with an interval that stays valid while values are added."""

import math
from collections.abc import Callable

from suite.statistics.sequential import Interval

BISECTIONS = 60  # halve the unit interval down to the spacing of float64


def share_interval(ones: int, n: int, alpha: float = 0.05) -> Interval:
    """Confidence sequence of a probability.

    With probability 1 − alpha, the interval contains the probability at every number of values. The evidence against p
    is the ratio of the values' likelihood under Jeffreys' prior Beta(1/2, 1/2) to that under p (Robbins, "Statistical
    methods related to the law of the iterated logarithm", Annals of Mathematical Statistics 41 (1970)):

        B(ones + 1/2, n − ones + 1/2) / B(1/2, 1/2) / (p^ones · (1 − p)^(n − ones))

    It is a martingale that starts at 1 if p is true. The interval contains each p with evidence below 1/alpha.

    Args:
        ones: number of ones.
        n: number of values, at least 1.
        alpha: probability that the interval ever excludes the truth.

    Raises:
        ValueError: if `ones` does not lie between 0 and n, or n is 0.
    """
    if not 0 <= ones <= n or n == 0:
        raise ValueError(f"{ones} of {n} is no share")
    mixture = _log_beta(ones + 0.5, n - ones + 0.5) - _log_beta(0.5, 0.5)
    limit = math.log(1 / alpha)

    def excluded(p: float) -> bool:
        """Return whether p in (0, 1) has too much evidence against it."""
        return mixture - ones * math.log(p) - (n - ones) * math.log1p(-p) >= limit

    middle = ones / n
    low = 0.0 if ones == 0 else _edge(middle, 0.0, excluded)
    high = 1.0 if ones == n else _edge(middle, 1.0, excluded)
    return Interval(low, high)


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
