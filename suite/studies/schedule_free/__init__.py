"""Schedule-Free gradient descent: its two limits, and the weights of its average (Defazio et al., arXiv:2405.15682)."""

from typing import Literal

import numpy as np

RATE = 0.1


def measure(
    seed: int,
    *,
    compared: Literal["polyak-ruppert", "primal-averaging", "optax"],
    beta: float = 0.9,
    added: int = 1,
    steps: int = 50,
) -> float:
    """Return the relative difference of the averages x after the steps, on a quadratic loss, in float64.

    Step t, counted from 1, is y = (1 - beta) z + beta x; z' = z - rate times the gradient at y; x' = (1 - c) x + c z'
    with c = 1 / (t + added), and x = z at the start.

    Args:
        seed: of the quadratic and the start.
        compared: with the average of the iterates of gradient descent; with gradient descent whose gradients are taken
            at the average; or with `optax.contrib.schedule_free` of SGD.
        beta: of the interpolation; 0 and 1 are the limits.
        added: 1 as in the authors' README, or 0 as in optax's docstring.
        steps: number of steps.
    """
    random = np.random.default_rng(seed)
    curvature, start = random.uniform(0.1, 2, 20), random.standard_normal(20)
    x = z = start
    for step in range(1, steps + 1):
        z = z - RATE * curvature * ((1 - beta) * z + beta * x)
        x = x + (z - x) / (step + added)
    if compared == "optax":
        from suite.studies.schedule_free.jax import average

        other = average(curvature, start, RATE, beta, steps)
    else:
        other = average_iterates(curvature, start, steps, at_average=compared == "primal-averaging")
    return float(np.linalg.norm(x - other) / np.linalg.norm(other))


def average_iterates(curvature: np.ndarray, start: np.ndarray, steps: int, *, at_average: bool) -> np.ndarray:
    """Return the mean of the start and of the iterates of gradient descent.

    Args:
        curvature: second derivatives of the loss.
        start: first iterate.
        steps: number of steps.
        at_average: whether the gradients are taken at the mean of the iterates so far.
    """
    iterates = [start]
    for _ in range(steps):
        point = np.mean(iterates, axis=0) if at_average else iterates[-1]
        iterates.append(iterates[-1] - RATE * curvature * point)
    return np.mean(iterates, axis=0)
