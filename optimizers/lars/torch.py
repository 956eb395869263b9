"""LARS in torch."""

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
    make_zero_state,
    select_with_gradient,
)
from suite.optimizers.lars import EPSILON
from suite.optimizers.lars.settings import Settings


@describe_settings(Settings)
class LARS(Optimizer[Settings]):
    """Momentum with layer-wise rates; vectors follow plain momentum without decay.

    Args:
        parameters: tensors, `model.named_parameters()`, or groups of either.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, **settings: Any):
        super().__init__(parameters, take_settings(Settings, lr, settings))

    def _begin(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            self.state[parameter]["velocity"] = make_zero_state(parameter)

    def _update(self) -> None:
        for group in self.param_groups:
            if not (params := select_with_gradient(group["params"])):
                continue
            grads = densify_gradients(params)
            with edit_weights(params) as values:
                norms = zip(torch._foreach_norm(values), torch._foreach_norm(grads), params, strict=True)
                rates = [_rate(w, g, group) if parameter.ndim > 1 else torch.ones_like(w) for w, g, parameter in norms]
                grads = add_weight_decay(grads, values, group["weight_decay"])
                scaled = torch._foreach_mul(grads, [group["lr"] * rate for rate in rates])
                velocity = [self.state[parameter]["velocity"] for parameter in params]
                torch._foreach_mul_(velocity, group["momentum"])
                torch._foreach_add_(velocity, scaled)
                torch._foreach_sub_(values, velocity)


def _rate(norm_w: Tensor, norm_g: Tensor, group: dict[str, Any]) -> Tensor:
    """Trust ratio of one layer, 1 where its weights are zero."""
    ratio = group["trust"] * norm_w / (norm_g + group["weight_decay"] * norm_w + EPSILON)
    return torch.where(norm_w > 0, ratio, torch.ones_like(ratio))


make = LARS
