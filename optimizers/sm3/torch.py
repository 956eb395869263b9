"""SM3 in torch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import decayed, dense, velocities
from suite.optimizers.sm3 import EPSILON, check


class SM3(torch.optim.Optimizer):
    """AdaGrad from one number for each slice; the rule stands in the package's docstring.

    `state[parameter]["covers"]` holds μ, one tensor for each axis, of the parameter's length there and 1 elsewhere.

    Args:
        parameters: `model.named_parameters()`.
        lr: learning rate η.
        momentum: β, of the scaled gradients' average; at 0 none is held.
        weight_decay: λ of the L2 term, added to the gradients of matrices and filters.
        variant: I | II.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        variant: str = "II",
    ):
        check(variant)
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.second = variant == "II"
        for group in self.param_groups:
            for parameter in group["params"]:
                axes = range(max(parameter.ndim, 1))
                self.state[parameter]["covers"] = [parameter.new_zeros(_slices(parameter, axis)) for axis in axes]
            velocities(self, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            if not momentum and not group["weight_decay"]:  # which reach every row of a table
                params = [parameter for parameter in params if not self._by_rows(parameter, group["lr"])]
            if not params:
                continue
            grads = decayed(dense(params), params, group["weight_decay"])
            pairs = zip(params, grads, strict=True)
            direction = [self._bound(self.state[parameter]["covers"], grad) for parameter, grad in pairs]
            torch._foreach_add_(direction, EPSILON)
            torch._foreach_rsqrt_(direction)
            torch._foreach_mul_(direction, grads)
            if momentum:
                velocity = velocities(self, group)
                torch._foreach_lerp_(velocity, direction, 1.0 - momentum)
                direction = velocity
            torch._foreach_add_(params, direction, alpha=-group["lr"])

    def _bound(self, covers: list[Tensor], grad: Tensor) -> Tensor:
        """ν of every element, as a new tensor; μ is brought up to date."""
        if self.second:
            nu = torch.addcmul(_least(covers), grad, grad)
            for cover, largest in zip(covers, _largest(nu), strict=True):
                cover.copy_(largest)
            return nu
        for cover, largest in zip(covers, _largest(grad * grad), strict=True):
            cover.add_(largest)
        return _least(covers).expand_as(grad).clone()

    def _by_rows(self, table: Tensor, lr: float) -> bool:
        """Update the rows that a sparse gradient names, which are its only slices; whether it was one."""
        if table.grad is None or not table.grad.is_sparse:
            return False
        grad, cover = table.grad.coalesce(), self.state[table]["covers"][0]
        ids, values = grad.indices()[0], grad.values()
        before, square = cover[ids], values * values
        after = before + _largest(square)[0]
        cover.index_copy_(0, ids, after)  # in SM3-II too: max(μ + g²) = μ + max g²
        scale = before + square if self.second else after
        table.index_add_(0, ids, values / (scale + EPSILON).sqrt(), alpha=-lr)
        return True


def _slices(value: Tensor, axis: int) -> list[int]:
    """Shape of what holds one number for each slice along an axis."""
    return [length if place == axis else 1 for place, length in enumerate(value.shape)]


def _least(covers: list[Tensor]) -> Tensor:
    """The least μ of each element's slices; the last axes first, so that only the last minimum is of full size."""
    least = covers[-1]
    for cover in reversed(covers[:-1]):
        least = torch.minimum(cover, least)
    return least


def _largest(value: Tensor) -> list[Tensor]:
    """The largest element of every slice, axis by axis; an axis is gone before the next, so the whole is read twice."""
    found, rest = [], value
    for axis in range(value.ndim - 1):
        found.append(rest.amax(list(range(axis + 1, value.ndim)), keepdim=True))
        rest = rest.amax(axis, keepdim=True)
    return [*found, rest]


make = SM3
