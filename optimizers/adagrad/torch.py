"""AdaGrad in torch."""

from collections.abc import Iterable, Mapping
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
    make_zero_state,
    read_rows,
    reset_blocks,
    select_with_gradient,
)
from suite.optimizers.adagrad.settings import Settings


@describe_settings(Settings)
class Adagrad(Optimizer[Settings]):
    """Diagonal AdaGrad; a sparse gradient changes only its rows, unless there is momentum or decay.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings))

    def _begin(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            self.state[parameter]["sum"] = make_zero_state(parameter)
        ensure_velocities(self, group["params"], group["momentum"])

    def _update(self) -> None:
        for group in self.param_groups:
            params = select_with_gradient(group["params"])
            if not group["momentum"] and not group["weight_decay"]:  # these two change every row of a table
                params = [parameter for parameter in params if not self._by_rows(parameter, group)]
            if not params:
                continue
            grads = add_weight_decay(densify_gradients(params), params, group["weight_decay"])
            total = [self.state[parameter]["sum"] for parameter in params]
            torch._foreach_addcmul_(total, grads, grads)
            if group["initial_accumulator"]:
                total = torch._foreach_add(total, group["initial_accumulator"])
            scale = torch._foreach_sqrt(total)
            torch._foreach_add_(scale, group["epsilon"])
            with edit_weights(params) as values:
                if group["momentum"]:
                    velocity = ensure_velocities(self, params, group["momentum"])
                    torch._foreach_mul_(velocity, group["momentum"])
                    torch._foreach_addcdiv_(velocity, grads, scale)
                    torch._foreach_add_(values, velocity, alpha=-group["lr"])
                else:
                    torch._foreach_addcdiv_(values, grads, scale, -group["lr"])

    def _by_rows(self, table: Tensor, group: dict[str, Any]) -> bool:
        """Update the rows that a sparse gradient names; False where `read_rows` finds none."""
        if (rows := read_rows(table)) is None:
            return False
        (ids, values), sums = rows, self.state[table]["sum"]
        total = sums[ids].addcmul_(values, values)
        sums.index_copy_(0, ids, total)
        scale = total.add_(group["initial_accumulator"]).sqrt_().add_(group["epsilon"])
        table.index_add_(0, ids, values / scale, alpha=-group["lr"])
        return True

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        reset_blocks(self, moved)


make = Adagrad
