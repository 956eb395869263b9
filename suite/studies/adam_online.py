"""Online linear problems on [-1, 1] on which Adam goes to the worst point (Reddi, Kale, Kumar, arXiv:1904.09237)."""

from typing import Literal

import numpy as np

Problem = Literal["thirds", "online", "stochastic"]


def measure(
    seed: int,
    *,
    problem: Problem,
    method: Literal["adam", "amsgrad"] = "adam",
    large: float = 3.0,
    beta1: float = 0.0,
    beta2: float = 0.1,
    rate: float = 0.5,
    steps: int = 100_000,
    start: float | None = None,
) -> float:
    """The mean iterate over the last tenth of a run; -1 is optimal, +1 is the worst point.

    Args:
        seed: of the start, uniform in [-1, 1], and of the stochastic problem's draws.
        problem: `thirds`: gradient C if t mod 3 = 1, else -1 (section 3). `online`: 1010 if t mod 101 = 1, else -10.
            `stochastic`: 1010 with probability 0.01, else -10 (both section 5).
        method: Adam without bias correction, as in the paper (equation 1), or AMSGrad (algorithm 2).
        large: C of `thirds`.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        rate: alpha; the step size of step t is alpha / sqrt(t) (section 2).
        steps: number of steps.
        start: first iterate; absent: drawn.
    """
    random = np.random.default_rng(seed)
    x = random.uniform(-1.0, 1.0) if start is None else start
    slopes = gradients(problem, steps, large, random)
    first = second = largest = total = 0.0
    tail = max(steps // 10, 1)
    for step, slope in enumerate(slopes.tolist(), start=1):
        first = beta1 * first + (1 - beta1) * slope  # equation 1
        second = beta2 * second + (1 - beta2) * slope**2
        largest = max(largest, second) if method == "amsgrad" else second  # algorithm 2
        x = min(1.0, max(-1.0, x - rate / step**0.5 * first / largest**0.5))  # projection onto [-1, 1]
        total += x if step > steps - tail else 0.0
    return total / tail


def gradients(problem: Problem, steps: int, large: float, random: np.random.Generator) -> np.ndarray:
    """The slopes of the loss functions of steps 1 to `steps`."""
    step = np.arange(1, steps + 1)
    if problem == "thirds":
        return np.where(step % 3 == 1, large, -1.0)
    hit = step % 101 == 1 if problem == "online" else random.random(steps) < 0.01
    return np.where(hit, 1010.0, -10.0)
