"""AdamW in torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.declared import describe_settings, take_settings
from suite.optimizers._base.torch import (
    Optimizer,
    by_updates,
    densify_gradients,
    edit_weights,
    ensure_step_counter,
    make_zero_state,
    record_missed_updates,
    reset_blocks,
)
from suite.optimizers.adamw.settings import Settings


@describe_settings(Settings)
class AdamW(Optimizer[Settings]):
    """Adam with decoupled weight decay; decay spares vectors.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings), ["bias_correction"])

    def _begin(self, group: dict[str, Any]) -> None:
        record_missed_updates(self, "adamw", group["params"])
        for parameter in group["params"]:
            self.state[parameter]["first"] = make_zero_state(parameter)
            self.state[parameter]["second"] = make_zero_state(parameter)

    def _update(self) -> None:
        steps = ensure_step_counter(self, "adamw").add_(1.0)
        for group in self.param_groups:
            for params, updates in by_updates(self, group["params"], steps):
                with edit_weights(params) as values:
                    self._move(params, values, updates, group)

    def _move(self, params: list[Tensor], values: list[Tensor], steps: Tensor, group: dict[str, Any]) -> None:
        """Update the values of parameters that have been updated equally often."""
        grads = densify_gradients(params)
        first = [self.state[parameter]["first"] for parameter in params]
        second = [self.state[parameter]["second"] for parameter in params]
        torch._foreach_lerp_(first, grads, 1.0 - group["beta1"])
        torch._foreach_mul_(second, group["beta2"])
        torch._foreach_addcmul_(second, grads, grads, 1.0 - group["beta2"])
        mean, scale = first, torch._foreach_sqrt(second)
        if group["bias_correction"]:  # in float64: 1 - β₂ᵗ cancels
            mean = torch._foreach_div(first, (1.0 - group["beta1"] ** steps).to(first[0].dtype))
            torch._foreach_div_(scale, (1.0 - group["beta2"] ** steps).sqrt().to(first[0].dtype))
        torch._foreach_add_(scale, group["epsilon"])
        matrices = [value for value in values if value.ndim > 1]
        if matrices and group["weight_decay"]:
            torch._foreach_mul_(matrices, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(values, mean, scale, -group["lr"])

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        reset_blocks(self, moved)


make = AdamW
