"""AdamW's step as a fallback, in float64 NumPy: [L] Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2."""

from typing import Protocol

import numpy as np


class Fallback(Protocol):
    """Settings of an optimizer that leaves some parameters to AdamW."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def fallback_ratio(self) -> float: ...
    @property
    def fallback_beta1(self) -> float: ...
    @property
    def fallback_beta2(self) -> float: ...
    @property
    def fallback_epsilon(self) -> float: ...


def step_adamw(
    w: np.ndarray, g: np.ndarray, moments: tuple[np.ndarray, np.ndarray], settings: Fallback, step: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """One step, counted from 0, of a parameter with this gradient; returns the new parameter and moments."""
    beta1, beta2 = settings.fallback_beta1, settings.fallback_beta2
    first = beta1 * moments[0] + (1.0 - beta1) * g  # [L] 7
    second = beta2 * moments[1] + (1.0 - beta2) * g**2  # [L] 8
    m, v = first / (1.0 - beta1 ** (step + 1)), second / (1.0 - beta2 ** (step + 1))  # [L] 9 and 10
    decay = settings.weight_decay * w if w.ndim > 1 else 0.0
    rate = settings.fallback_ratio * settings.lr
    return w - rate * (m / (np.sqrt(v) + settings.fallback_epsilon) + decay), (first, second)  # [L] 12
