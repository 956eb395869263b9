"""What several torch optimizers share."""

import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import UserError


def by_name(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters by name.

    Raises:
        UserError: where they were given without names.
    """
    groups = optimizer.param_groups
    if any("param_names" not in group for group in groups):
        kind = type(optimizer).__name__
        raise UserError(f"{kind} must know its parameters' names; type {kind}(model.named_parameters(), …)")
    return {name: p for group in groups for name, p in zip(group["param_names"], group["params"], strict=True)}


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


def normal(key: tuple[int, int], name: str, like: Tensor) -> Tensor:
    """`suite.stream.normal`, a draw for each element of `like`, on its device and computed in its type.

    The words are held in int32, whose products wrap as unsigned ones do; torch shifts no unsigned integers.
    """
    index = torch.arange(like.numel(), dtype=torch.int32, device=like.device)
    radius, angle = (_uniform(key, f"{name}/{part}", index).to(like.dtype) for part in ("radius", "angle"))
    return ((-2.0 * radius.log()).sqrt() * (2.0 * math.pi * angle).cos()).view(like.shape)


def _uniform(key: tuple[int, int], name: str, index: Tensor) -> Tensor:
    """`suite.stream.uniform`, from int32 indices."""
    word = index
    for part in (zlib.crc32(name.encode()), *key):
        word = _mix(word ^ _signed(part)).add_(_signed(0x9E3779B9))
    return (_shifted(_mix(word), 9).float() + 0.5) * 2.0**-23


def _mix(word: Tensor) -> Tensor:
    word = (word ^ _shifted(word, 16)) * _signed(0x85EBCA6B)
    word = (word ^ _shifted(word, 13)) * _signed(0xC2B2AE35)
    return word ^ _shifted(word, 16)


def _shifted(word: Tensor, places: int) -> Tensor:
    """Shifted to the right, zeros coming in."""
    return (word >> places) & (2 ** (32 - places) - 1)


def _signed(word: int) -> int:
    """The int32 of the same 32 bits."""
    return (word + 2**31) % 2**32 - 2**31
