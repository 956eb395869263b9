"""Losses of rare classes under gradient flow and sign descent (Kunstner et al., arXiv:2402.19449)."""

from typing import Literal

import numpy as np


def measure(
    seed: int,
    *,
    method: Literal["gradient", "sign"],
    quantity: Literal["exponent", "spread", "rate"],
    classes: int = 10,
    time: float = 0.0,
    step: float = 0.01,
) -> float:
    """A property of how the losses of the classes fall in the simple imbalanced setting of section 3.3.

    Each sample of class k is the basis vector e_k, the frequencies are proportional to 1/k, W starts at 0, and the
    loss is cross-entropy. Column k of W decides the loss of class k alone.

    Args:
        seed: not used; the computation is deterministic.
        method: gradient flow, or sign descent, in small steps.
        quantity: `exponent`: slope of log loss over log time, of the rarest class; theorem 3 prints
            Theta(1 / (pi_k t)) for gradient flow, slope -1. `spread`: loss of the rarest class divided by the loss of
            the most frequent one; 1 / (pi_k t) means the inverse ratio of frequencies, here the number of classes.
            `rate`: fall of the log loss of the rarest class per unit of time; theorem 3 prints Theta(exp(-c t)) for
            sign descent, c being the classes.
        classes: c.
        time: at which the slope is measured; 0: 1e5 for the gradient, 8 for the sign.
        step: length of a step of time; gradient flow uses growing steps of this share of the time that has passed.
    """
    end = time or (1e5 if method == "gradient" else 8.0)
    frequencies = 1 / np.arange(1, classes + 1)
    frequencies /= frequencies.sum()
    before, after = (losses(frequencies, method, moment, step) for moment in (end / 1.25, end))
    if quantity == "exponent":
        return float(np.log(after[-1] / before[-1]) / np.log(1.25))
    if quantity == "spread":
        return float(after[-1] / after[0])
    return float(np.log(before[-1] / after[-1]) / (end - end / 1.25))


def losses(frequencies: np.ndarray, method: Literal["gradient", "sign"], end: float, step: float) -> np.ndarray:
    """The loss of each class at a time, by Euler's method on all columns of W."""
    classes = len(frequencies)
    weights = np.zeros((classes, classes))  # row: class; column: input
    time = 0.0
    while time < end:
        length = min(step if method == "sign" else step * max(time, 1.0), end - time)
        shares = np.exp(weights - weights.max(axis=0))
        shares /= shares.sum(axis=0)
        descent = frequencies * (np.eye(classes) - shares)  # minus the gradient: pi_k (1[i = k] - softmax_i)
        weights = weights + length * (np.sign(descent) if method == "sign" else descent)
        time += length
    margins = weights - np.diag(weights)  # log of the shares, relative to the right class
    np.fill_diagonal(margins, -np.inf)
    return np.log1p(np.exp(margins).sum(axis=0))
