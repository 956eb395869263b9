"""Optimizers of torch."""

from collections.abc import Callable

import numpy as np
import torch
from torch.optim import Adam, AdamW, NAdam, Optimizer, RAdam


def move_adam(gradients: np.ndarray) -> np.ndarray:
    """Return how far Adam with decoupled weight decay moves parameters of 1."""
    return _move(lambda one: Adam([one], lr=0.01, weight_decay=0.1, decoupled_weight_decay=True), gradients)


def move_adamw(gradients: np.ndarray) -> np.ndarray:
    """Return how far AdamW moves parameters of 1."""
    return _move(lambda one: AdamW([one], lr=0.01, weight_decay=0.1), gradients)


def move_nadam(gradients: np.ndarray) -> np.ndarray:
    """Return how far NAdam moves parameters of 1."""
    return _move(lambda one: NAdam([one], lr=0.01), gradients)


def move_radam(gradients: np.ndarray) -> np.ndarray:
    """Return how far RAdam moves parameters of 1."""
    return _move(lambda one: RAdam([one], lr=0.01), gradients)


def _move(make: Callable[[torch.Tensor], Optimizer], gradients: np.ndarray) -> np.ndarray:
    """Return how far an optimizer moves parameters of 1, by one step for each row of gradients."""
    parameter = torch.ones(gradients.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = make(parameter)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameter.detach().numpy() - 1
