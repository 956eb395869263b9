"""LAMB in torch."""

from collections.abc import Iterable
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
)
from suite.optimizers.lamb.settings import Settings


@describe_settings(Settings)
class LAMB(Optimizer[Settings]):
    """Adam's direction with layer-wise rates; vectors follow Adam without decay.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings), ["bias_correction", "adapt_vectors"])

    def _begin(self, group: dict[str, Any]) -> None:
        record_missed_updates(self, "lamb", group["params"])
        for parameter in group["params"]:
            self.state[parameter]["first"] = make_zero_state(parameter)
            self.state[parameter]["second"] = make_zero_state(parameter)

    def _update(self) -> None:
        steps = ensure_step_counter(self, "lamb").add_(1.0)
        for group in self.param_groups:
            for params, updates in by_updates(self, group["params"], steps):
                with edit_weights(params) as values:
                    self._move(values, self._adam(params, group, updates), group)

    def _move(self, values: list[Tensor], direction: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters by Adam's direction, with decay and times the ratio."""
        places = [i for i, value in enumerate(values) if value.ndim > 1]
        if places and group["weight_decay"]:
            matrices = [values[i] for i in places]
            torch._foreach_add_([direction[i] for i in places], matrices, alpha=group["weight_decay"])
        if group["adapt_vectors"]:
            places = list(range(len(values)))
        if places:
            adapted = [direction[i] for i in places]
            torch._foreach_mul_(adapted, _ratios([values[i] for i in places], adapted, group))
        torch._foreach_add_(values, direction, alpha=-group["lr"])

    def _adam(self, params: list[Tensor], group: dict[str, Any], steps: Tensor) -> list[Tensor]:
        """Adam's direction m̂ / (√v̂ + ε), in new tensors."""
        grads = densify_gradients(params)
        first = [self.state[parameter]["first"] for parameter in params]
        second = [self.state[parameter]["second"] for parameter in params]
        torch._foreach_lerp_(first, grads, 1.0 - group["beta1"])
        torch._foreach_mul_(second, group["beta2"])
        torch._foreach_addcmul_(second, grads, grads, 1.0 - group["beta2"])
        scale = torch._foreach_sqrt(second)
        if not group["bias_correction"]:
            torch._foreach_add_(scale, group["epsilon"])
            return list(torch._foreach_div(first, scale))
        # in float64, because 1 - β₂ᵗ cancels; two corrections in one product: m is divided by c₁ (√v c₂ + ε)
        correction1, correction2 = 1.0 - group["beta1"] ** steps, (1.0 - group["beta2"] ** steps).sqrt()
        torch._foreach_mul_(scale, (correction1 / correction2).to(first[0].dtype))
        epsilon = (correction1 * group["epsilon"]).to(first[0].dtype)
        torch._foreach_add_(scale, epsilon, alpha=1.0)  # without alpha, torch reads the tensor as a number
        return list(torch._foreach_div(first, scale))


def _ratios(params: list[Tensor], direction: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """‖w‖ / ‖u‖ of each layer within its bounds, 1 where either is 0."""
    norm_w, norm_u = torch.stack(torch._foreach_norm(params)), torch.stack(torch._foreach_norm(direction))
    ratios = torch.where((norm_w == 0) | (norm_u == 0), 1.0, norm_w / norm_u)
    return list(ratios.clamp(group["least_ratio"], group["largest_ratio"] or None).unbind())


make = LAMB
