"""The two printed upper bounds of Adam's step, and gradients that exceed them (Kingma, Ba, arXiv:1412.6980)."""

from typing import Literal

import numpy as np


def measure(
    seed: int,
    *,
    gradients: Literal["sparse", "constant", "normal", "growing"],
    beta1: float = 0.9,
    beta2: float = 0.999,
    steps: int = 1000,
) -> float:
    """The largest step of a run, divided by the printed bound; at most 1 if the bound holds.

    Section 2.1, with epsilon = 0: |step| <= alpha (1 - beta1) / sqrt(1 - beta2) if 1 - beta1 > sqrt(1 - beta2), and
    |step| <= alpha otherwise.

    Args:
        seed: of the normal gradients.
        gradients: of one parameter. `sparse`: zero except in the last step, the case that the paper names as the most
            severe. `growing`: g_i proportional to (beta2 / beta1)^i, for which the Cauchy-Schwarz inequality
            (sum beta1^(t-i) g_i)^2 <= (sum (beta1^2 / beta2)^(t-i)) (sum beta2^(t-i) g_i^2) is an equality.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        steps: number of steps; the squares of growing gradients must not exceed the range of float64.
    """
    spread = 1 - beta1 > np.sqrt(1 - beta2)
    bound = (1 - beta1) / np.sqrt(1 - beta2) if spread else 1.0
    return float(np.max(np.abs(ratios(_gradients(gradients, beta1, beta2, steps, seed), beta1, beta2))) / bound)


def ratios(sequence: np.ndarray, beta1: float, beta2: float) -> np.ndarray:
    """The steps divided by alpha: bias-corrected first moment over root of the bias-corrected second (algorithm 1)."""
    first = second = 0.0
    steps = np.zeros(len(sequence))
    for step, gradient in enumerate(sequence, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        if second > 0:
            steps[step - 1] = first / (1 - beta1**step) / np.sqrt(second / (1 - beta2**step))
    return steps


def _gradients(name: str, beta1: float, beta2: float, steps: int, seed: int) -> np.ndarray:
    if name == "sparse":
        return np.where(np.arange(steps) == steps - 1, 1.0, 0.0)
    if name == "growing":
        return (beta2 / beta1) ** np.arange(steps, dtype=float)
    return np.ones(steps) if name == "constant" else np.random.default_rng(seed).standard_normal(steps)
