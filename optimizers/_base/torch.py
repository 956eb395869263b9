"""What several torch optimizers share."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def dense(parameters: list[Tensor]) -> list[Tensor]:
    """The parameters' gradients; a sparse one, which a table's is, is filled up with zeros first."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def decayed(gradients: list[Tensor], parameters: list[Tensor], weight_decay: float) -> list[Tensor]:
    """Gradients with L2 decay added to matrices and filters; vectors (biases, normalisation) are left alone.

    Goyal et al. 2017, §5.3: no decay on batch normalisation's coefficients. The given tensors are not changed.
    """
    if not weight_decay:
        return gradients
    pairs = zip(gradients, parameters, strict=True)
    return [torch.add(g, p, alpha=weight_decay) if p.ndim > 1 else g for g, p in pairs]


@torch.no_grad()
def forget(optimizer: torch.optim.Optimizer, moved: Mapping[Tensor, Tensor]) -> None:
    """Set to zero what the optimizer holds for some blocks of parameters: {parameter (n, …): (n,) booleans}."""
    for parameter, mask in moved.items():
        for value in optimizer.state[parameter].values():
            value[mask] = 0


def velocities(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[Tensor]:
    """The velocity of each parameter of a group, zeros at first; [] and no memory used while its momentum is 0."""
    if not group["momentum"]:
        return []
    states = [optimizer.state[parameter] for parameter in group["params"]]
    for parameter, state in zip(group["params"], states, strict=True):
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
    return [state["velocity"] for state in states]
