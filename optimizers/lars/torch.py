"""LARS in torch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import decayed
from suite.optimizers.lars import EPSILON


class LARS(torch.optim.Optimizer):
    """Momentum with layer-wise rates; vectors follow plain momentum without decay.

    Args:
        parameters: `model.named_parameters()`.
        lr: global learning rate η.
        momentum: μ.
        weight_decay: λ of the L2 term, for matrices and filters.
        trust: the trust coefficient.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust: float = 1e-3,
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["velocity"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            params, decay = group["params"], group["weight_decay"]
            grads = [parameter.grad for parameter in params]
            norms = zip(torch._foreach_norm(params), torch._foreach_norm(grads), params, strict=True)
            rates = [_rate(w, g, group) if parameter.ndim > 1 else torch.ones_like(w) for w, g, parameter in norms]
            scaled = torch._foreach_mul(decayed(grads, params, decay), [group["lr"] * rate for rate in rates])
            velocity = [self.state[parameter]["velocity"] for parameter in params]
            torch._foreach_mul_(velocity, group["momentum"])
            torch._foreach_add_(velocity, scaled)
            torch._foreach_sub_(params, velocity)


def _rate(norm_w: Tensor, norm_g: Tensor, group: dict[str, Any]) -> Tensor:
    """Trust ratio of one layer, 1 where its weights are zero."""
    ratio = group["trust"] * norm_w / (norm_g + group["weight_decay"] * norm_w + EPSILON)
    return torch.where(norm_w > 0, ratio, torch.ones_like(ratio))


make = LARS
