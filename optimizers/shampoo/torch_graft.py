"""Steps of the method that Shampoo grafts, in torch."""

from typing import Any

import torch
from torch import Tensor

from suite.optimizers._linalg.torch import compute_norms
from suite.optimizers.shampoo import Graft
from suite.optimizers.shampoo.plan import GRAFT_EPSILON

Tree = dict[str, Tensor]


def compute_averaging_weights(beta2: float) -> tuple[float, float]:
    """Return the factors of the old value and of the new term: of an average, or of a sum where `beta2` is 1."""
    return beta2, 1.0 - beta2 if beta2 < 1 else 1.0


def compute_grafted_steps(graft: Graft, grads: Tree, states: list[dict[str, Tensor]], beta2: float) -> Tree:
    """Return the grafted method's steps, without learning rate and momentum.

    Args:
        graft: the method.
        grads: gradients by name.
        states: of their parameters, in the same order; `square` and `mass` are updated.
        beta2: decay of the squared gradient's average.
    """
    if graft == "sgd":
        return grads
    past, gain = (1.0, 1.0) if graft == "adagrad" else compute_averaging_weights(beta2)
    values, square = list(grads.values()), [state["square"] for state in states]
    torch._foreach_mul_(square, past)
    torch._foreach_addcmul_(square, values, values, gain)
    corrected: Any = square
    if graft == "adam":
        mass = [state["mass"] for state in states]
        torch._foreach_mul_(mass, past)
        torch._foreach_add_(mass, gain)
        corrected = torch._foreach_div(square, mass)
    scale = torch._foreach_sqrt(corrected)
    torch._foreach_add_(scale, GRAFT_EPSILON)
    return dict(zip(grads, torch._foreach_div(values, scale), strict=True))


def match_lengths(blocks: Tensor, steps: Tensor) -> Tensor:
    """Return blocks (count, …) with the length of the steps; the steps themselves where a length is 0 or not finite."""
    norm, goal = (compute_norms(value.unbind()) for value in (blocks, steps))
    known = (norm > 0) & norm.isfinite() & goal.isfinite()
    shape = (-1, *[1] * (blocks.ndim - 1))
    return torch.where(known.view(shape), blocks * (goal / torch.where(known, norm, 1.0)).view(shape), steps)
