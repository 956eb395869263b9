"""AdamW's step in torch, for the parameters that another optimizer leaves to it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import Optimizer, densify_gradients


def step_adamw(
    optimizer: Optimizer[Any], params: list[Tensor], values: list[Tensor], steps: Tensor, hyper: Mapping[str, Any]
) -> None:
    """Update parameters by AdamW, and their moments `first` and `second` in the optimizer's state.

    Args:
        optimizer: whose parameters they are.
        params: parameters that have been updated equally often.
        values: theirs, from `edit_weights`; changed.
        steps: how often, this update included, in float64: 1 - β₂ᵗ cancels.
        hyper: `lr`, `weight_decay`, and what begins with `fallback_`.
    """
    grads, rate = densify_gradients(params), hyper["fallback_ratio"] * hyper["lr"]
    decayed = [value for value in values if value.ndim > 1]
    if decayed and hyper["weight_decay"]:
        torch._foreach_mul_(decayed, 1.0 - rate * hyper["weight_decay"])
    first = [optimizer.state[parameter]["first"] for parameter in params]
    second = [optimizer.state[parameter]["second"] for parameter in params]
    beta1, beta2 = hyper["fallback_beta1"], hyper["fallback_beta2"]
    torch._foreach_lerp_(first, grads, 1.0 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, (1.0 - beta2**steps).sqrt().to(first[0].dtype))
    torch._foreach_add_(scale, hyper["fallback_epsilon"])
    torch._foreach_mul_(scale, (1.0 - beta1**steps).to(first[0].dtype))
    torch._foreach_addcdiv_(values, first, scale, -rate)
