"""A strongly convex function on which the heavy-ball method cycles (Lessard, Recht, Packard, arXiv:1408.3595)."""

import numpy as np


def measure(seed: int, *, rate: float = 1 / 9, momentum: float = 4 / 9, steps: int = 10_000) -> float:
    """The smallest |x| of the last 100 iterates, the minimiser being 0; it is 0 if the method converges.

    Section 4.6: m = 1, L = 25, first iterate in [3.07, 3.46]. Rate and momentum are the best ones for quadratics,
    4 / (sqrt(L) + sqrt(m))^2 and ((sqrt(L) - sqrt(m)) / (sqrt(L) + sqrt(m)))^2.

    Args:
        seed: of the first iterate, uniform in the printed interval.
        rate: step size.
        momentum: factor of the last move.
        steps: number of steps.
    """
    x = previous = float(np.random.default_rng(seed).uniform(3.07, 3.46))
    tail = []
    for step in range(steps):
        x, previous = x - rate * gradient(x) + momentum * (x - previous), x
        if step >= steps - 100:
            tail.append(abs(x))
    return min(tail)


def gradient(x: float) -> float:
    """The derivative of the printed function: slope 25 below 1, slope 1 on [1, 2), slope 25 from 2."""
    if x < 1:
        return 25 * x
    return x + 24 if x < 2 else 25 * x - 24
