"""SM3 in torch."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from suite.declared import describe_settings, take_settings
from suite.optimizers._base.torch import (
    Optimizer,
    add_weight_decay,
    densify_gradients,
    edit_weights,
    ensure_velocities,
    read_rows,
    select_with_gradient,
    widen_type,
)
from suite.optimizers.sm3 import EPSILON
from suite.optimizers.sm3.settings import Settings


@describe_settings(Settings)
class SM3(Optimizer[Settings]):
    """AdaGrad with one number for each slice; the rule is in the package's docstring.

    `state[parameter]["covers"]` holds μ: one tensor for each axis, with the parameter's length along this axis and 1
    along the others.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings))

    def _begin(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            sizes = [_slices(parameter, axis) for axis in range(max(parameter.ndim, 1))]
            kind, device = widen_type(parameter.dtype), parameter.device
            self.state[parameter]["covers"] = [torch.zeros(size, dtype=kind, device=device) for size in sizes]
        ensure_velocities(self, group["params"], group["momentum"], whole=True)

    def _update(self) -> None:
        for group in self.param_groups:
            params = [parameter for parameter in select_with_gradient(group["params"]) if parameter.numel()]
            momentum = group["momentum"]
            if not momentum and not group["weight_decay"]:  # these two change every row of a table
                params = [parameter for parameter in params if not self._by_rows(parameter, group["lr"])]
            if not params:
                continue
            grads = add_weight_decay(densify_gradients(params, whole=True), params, group["weight_decay"])
            pairs = zip(params, grads, strict=True)
            direction = [self._bound(self.state[parameter]["covers"], grad) for parameter, grad in pairs]
            torch._foreach_add_(direction, EPSILON)
            torch._foreach_rsqrt_(direction)
            torch._foreach_mul_(direction, grads)
            if momentum:
                velocity = ensure_velocities(self, params, momentum, whole=True)
                torch._foreach_lerp_(velocity, direction, 1.0 - momentum)
                direction = velocity
            with edit_weights(params, whole=True) as values:
                torch._foreach_add_(values, direction, alpha=-group["lr"])

    def _bound(self, covers: list[Tensor], grad: Tensor) -> Tensor:
        """ν of every element, as a new tensor; updates μ."""
        if self.settings.variant == "II":
            nu = torch.addcmul(_least(covers), grad, grad)
            for cover, largest in zip(covers, _largest(nu), strict=True):
                cover.copy_(largest)
            return nu
        for cover, largest in zip(covers, _largest(grad * grad), strict=True):
            cover.add_(largest)
        return _least(covers).expand_as(grad).clone()

    def _by_rows(self, table: Tensor, lr: float) -> bool:
        """Update the rows that a sparse gradient names; its slices are these rows only.

        Returns:
            False where `read_rows` finds none.
        """
        if (rows := read_rows(table)) is None:
            return False
        (ids, values), cover = rows, self.state[table]["covers"][0]
        before, square = cover[ids], values * values
        after = before + _largest(square)[0]
        cover.index_copy_(0, ids, after)  # in SM3-II too: max(μ + g²) = μ + max g²
        scale = before + square if self.settings.variant == "II" else after
        table.index_add_(0, ids, values / (scale + EPSILON).sqrt(), alpha=-lr)
        return True


def _slices(value: Tensor, axis: int) -> list[int]:
    """Return the shape of μ along an axis: one number for each slice."""
    return [length if place == axis else 1 for place, length in enumerate(value.shape)]


def _least(covers: list[Tensor]) -> Tensor:
    """Find the least μ of each element's slices, starting with the last axes: only the last minimum has full size."""
    least = covers[-1]
    for cover in reversed(covers[:-1]):
        least = torch.minimum(cover, least)
    return least


def _largest(value: Tensor) -> list[Tensor]:
    """Find every slice's largest element, by axis. Each axis is reduced before the next: two passes over the whole."""
    maxima, rest = [], value
    for axis in range(value.ndim - 1):
        maxima.append(rest.amax(list(range(axis + 1, value.ndim)), keepdim=True))
        rest = rest.amax(axis, keepdim=True)
    return [*maxima, rest]


make = SM3
