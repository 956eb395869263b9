"""SGD in torch."""

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
    make_zero_state,
    read_rows,
    reset_blocks,
    select_with_gradient,
)
from suite.optimizers.sgd.settings import Settings


@describe_settings(Settings)
class SGD(Optimizer[Settings]):
    """Gradient descent with momentum; decay spares vectors.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings), ["nesterov"])

    def _begin(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            self.state[parameter]["velocity"] = make_zero_state(parameter)

    def _update(self) -> None:
        for group in self.param_groups:
            momentum, params = group["momentum"], select_with_gradient(group["params"])
            if not momentum and not group["weight_decay"]:  # these two change every row of a table
                params = [parameter for parameter in params if not self._by_rows(parameter, group["lr"])]
            if not params:
                continue
            grads = add_weight_decay(densify_gradients(params), params, group["weight_decay"])
            velocity = [self.state[parameter]["velocity"] for parameter in params]
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, grads)
            direction = torch._foreach_add(grads, velocity, alpha=momentum) if group["nesterov"] else velocity
            with edit_weights(params) as values:
                torch._foreach_add_(values, direction, alpha=-group["lr"])

    @staticmethod
    def _by_rows(table: Tensor, lr: float) -> bool:
        """Update the rows that a sparse gradient names; False where `read_rows` finds none."""
        if (rows := read_rows(table)) is None:
            return False
        table.index_add_(0, *rows, alpha=-lr)
        return True

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        reset_blocks(self, moved)


make = SGD
