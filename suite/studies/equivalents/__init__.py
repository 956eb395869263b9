"""Pairs of optimizers that the documentation of torch and optax calls equivalent or describes by one report."""

from typing import Literal

import numpy as np

STEPS = 20


def measure(seed: int, *, pair: Literal["adam-adamw", "nadam", "radam"], above: float = 5.0) -> float:
    """Return the relative difference of the way that parameters of 1 move in float64.

    Args:
        seed: of the gradients, independent normal numbers.
        pair: `adam-adamw`: torch's Adam with decoupled_weight_decay=True, and its AdamW, both with weight decay 0.1.
            `nadam`: optax.nadam, and torch's NAdam. `radam`: torch's RAdam, and its formulas. Settings are each
            library's defaults, with the learning rate 0.01.
        above: the formulas of `radam` rectify where rho is above this number.
    """
    from suite.studies.equivalents import torch as in_torch

    gradients = np.random.default_rng(seed).standard_normal((STEPS, 100))
    if pair == "adam-adamw":
        first, second = in_torch.move_adam(gradients), in_torch.move_adamw(gradients)
    elif pair == "nadam":
        from suite.studies.equivalents import jax as in_jax

        first, second = in_jax.move_nadam(gradients), in_torch.move_nadam(gradients)
    else:
        first, second = in_torch.move_radam(gradients), rectify(gradients, above)
    return float(np.linalg.norm(first - second) / np.linalg.norm(second))


def rectify(gradients: np.ndarray, above: float) -> np.ndarray:
    """Return how far RAdam moves parameters (arXiv:1908.03265, algorithm 2, with torch's place of epsilon).

    Args:
        gradients: (steps, parameters).
        above: the step is rectified where rho is above this number.
    """
    beta1, beta2 = 0.9, 0.999
    first = second = moved = np.zeros(gradients.shape[1])
    longest = 2 / (1 - beta2) - 1
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        rho = longest - 2 * step * beta2**step / (1 - beta2**step)
        update = first / (1 - beta1**step)
        if rho > above:
            factor = ((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)) ** 0.5
            update = factor * update * np.sqrt(1 - beta2**step) / (np.sqrt(second) + 1e-8)
        moved = moved - 0.01 * update
    return moved
