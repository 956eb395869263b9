"""Descent along signs, with and without error feedback, on a convex function (Karimireddy et al., arXiv:1901.09847)."""

from typing import Literal

import numpy as np

SLOPE = 0.5  # of the flat direction


def measure(
    seed: int, *, method: Literal["signs", "scaled-signs", "feedback"], rate: float = 0.1, steps: int = 5000
) -> float:
    """Return the smallest value of the function over the iterates, relative to the first value; the minimum is 0.

    f(x) = 1/2 |x1 + x2| + |x1 - x2|, near the line x1 = x2. The two signs of each subgradient are unlike, so that their
    step leaves x1 + x2 unchanged.

    Args:
        seed: of the first iterate, 1 to 2 in both coordinates.
        method: `signs`: x - rate sign(g). `scaled-signs`: the sign times the mean of |g|. `feedback`: that of rate g
            plus the error, which collects what was not applied.
        rate: the rate of step t is `rate` / sqrt(t).
        steps: number of steps.
    """
    start = 1 + float(np.random.default_rng(seed).random())
    x, error = np.array([start, start + rate / 10]), np.zeros(2)
    first = smallest = value(x)
    for step in range(1, steps + 1):
        gradient = slope(x)
        if method == "signs":
            x = x - rate / step**0.5 * np.sign(gradient)
        else:
            wanted = rate / step**0.5 * gradient + error
            applied = np.sign(wanted) * np.mean(np.abs(wanted))
            error = wanted - applied if method == "feedback" else error
            x = x - applied
        smallest = min(smallest, value(x))
    return smallest / first


def value(x: np.ndarray) -> float:
    """The function."""
    return float(SLOPE * abs(x[0] + x[1]) + abs(x[0] - x[1]))


def slope(x: np.ndarray) -> np.ndarray:
    """A subgradient of the function; that of |0| is 1."""
    along, across = (1.0 if number >= 0 else -1.0 for number in (x[0] + x[1], x[0] - x[1]))
    return np.array([SLOPE * along + across, SLOPE * along - across])
