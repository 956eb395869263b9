"""RMSProp in torch."""

from collections.abc import Iterable, Mapping, Sequence
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
    reset_blocks,
    select_with_gradient,
    widen_type,
)
from suite.optimizers.rmsprop.settings import Settings


@describe_settings(Settings)
class RMSprop(Optimizer[Settings]):
    """Gradients divided by the root of their squares' recent average.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings))

    def _begin(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            kind = widen_type(parameter.dtype)
            self.state[parameter]["second"] = torch.full_like(parameter, float(self.settings.tensorflow), dtype=kind)
            if self.settings.centered:
                self.state[parameter]["mean"] = make_zero_state(parameter)
        ensure_velocities(self, group["params"], group["momentum"])

    def _update(self) -> None:
        for group in self.param_groups:
            params, beta2, rate = select_with_gradient(group["params"]), group["beta2"], group["lr"]
            if not params:
                continue
            grads = add_weight_decay(densify_gradients(params), params, group["weight_decay"])
            second = [self.state[parameter]["second"] for parameter in params]
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
            if self.settings.centered:
                mean = [self.state[parameter]["mean"] for parameter in params]
                torch._foreach_lerp_(mean, grads, 1.0 - beta2)
                second = torch._foreach_addcmul(second, mean, mean, -1.0)
                torch._foreach_clamp_min_(second, 0.0)  # a constant gradient has no variance, but rounding errors
            scale = self._scale(second, group["epsilon"])
            with edit_weights(params) as values:
                if group["momentum"]:
                    velocity = ensure_velocities(self, params, group["momentum"])
                    torch._foreach_mul_(velocity, group["momentum"])
                    torch._foreach_addcdiv_(velocity, grads, scale, rate if self.settings.tensorflow else 1.0)
                    torch._foreach_add_(values, velocity, alpha=-1.0 if self.settings.tensorflow else -rate)
                else:
                    torch._foreach_addcdiv_(values, grads, scale, -rate)

    def _scale(self, second: Sequence[Tensor], epsilon: float) -> list[Tensor]:
        """Return what the gradients are divided by."""
        if self.settings.tensorflow:
            scale = torch._foreach_add(list(second), epsilon)
            torch._foreach_sqrt_(scale)
        else:
            scale = torch._foreach_sqrt(list(second))
            torch._foreach_add_(scale, epsilon)
        return list(scale)

    @torch.no_grad()
    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        reset_blocks(self, moved)
        for parameter, mask in moved.items():
            self.state[parameter]["second"][mask] = float(self.settings.tensorflow)


make = RMSprop
