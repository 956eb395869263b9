"""LAMB in torch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import dense


class LAMB(torch.optim.Optimizer):
    """Adam's direction with layer-wise rates; vectors follow Adam without decay.

    Args:
        parameters: `model.named_parameters()`.
        lr: learning rate η.
        beta1: of the gradient's average.
        beta2: of the squared gradient's average.
        epsilon: added to the root of the second moment.
        weight_decay: λ, part of the direction in matrices and filters.
        bias_correction: divide both averages by the weight they hold.
        adapt_vectors: give vectors a ratio too (NVLAMB).
        least_ratio: bound of ‖w‖ / ‖u‖ from below.
        largest_ratio: bound from above; 0 is none.
    """

    state: dict[Any, Any]  # under the key "lamb": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        adapt_vectors: bool = False,
        least_ratio: float = 0.0,
        largest_ratio: float = 0.0,
    ):
        values = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        values |= {"least_ratio": least_ratio, "largest_ratio": largest_ratio}
        super().__init__(parameters, values | {"bias_correction": bias_correction, "adapt_vectors": adapt_vectors})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["first"] = torch.zeros_like(parameter)
                self.state[parameter]["second"] = torch.zeros_like(parameter)
        device = self.param_groups[0]["params"][0].device
        self.state["lamb"] = {"steps": torch.zeros((), dtype=torch.float64, device=device)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        steps = self.state["lamb"]["steps"].add_(1.0)
        for group in self.param_groups:
            params = group["params"]
            direction = self._adam(params, group, steps)
            places = [i for i, parameter in enumerate(params) if parameter.ndim > 1]
            if places and group["weight_decay"]:
                matrices = [params[i] for i in places]
                torch._foreach_add_([direction[i] for i in places], matrices, alpha=group["weight_decay"])
            if group["adapt_vectors"]:
                places = list(range(len(params)))
            if places:
                adapted = [direction[i] for i in places]
                torch._foreach_mul_(adapted, _ratios([params[i] for i in places], adapted, group))
            torch._foreach_add_(params, direction, alpha=-group["lr"])

    def _adam(self, params: list[Tensor], group: dict[str, Any], steps: Tensor) -> list[Tensor]:
        """Adam's direction m̂ / (√v̂ + ε), in new tensors."""
        grads = dense(params)
        first = [self.state[parameter]["first"] for parameter in params]
        second = [self.state[parameter]["second"] for parameter in params]
        torch._foreach_lerp_(first, grads, 1.0 - group["beta1"])
        torch._foreach_mul_(second, group["beta2"])
        torch._foreach_addcmul_(second, grads, grads, 1.0 - group["beta2"])
        scale = torch._foreach_sqrt(second)
        if not group["bias_correction"]:
            torch._foreach_add_(scale, group["epsilon"])
            return list(torch._foreach_div(first, scale))
        # in float64, because 1 - β₂ᵗ cancels; two corrections in one product: c₁ (√v c₂ + ε), by which m is divided
        of_first, of_second = 1.0 - group["beta1"] ** steps, (1.0 - group["beta2"] ** steps).sqrt()
        torch._foreach_mul_(scale, (of_first / of_second).to(first[0].dtype))
        torch._foreach_add_(scale, (of_first * group["epsilon"]).to(first[0].dtype))
        return list(torch._foreach_div(first, scale))


def _ratios(params: list[Tensor], direction: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """‖w‖ / ‖u‖ of each layer within its bounds, 1 where either is 0."""
    norm_w, norm_u = torch.stack(torch._foreach_norm(params)), torch.stack(torch._foreach_norm(direction))
    ratios = torch.where((norm_w == 0) | (norm_u == 0), 1.0, norm_w / norm_u)
    return list(ratios.clamp(group["least_ratio"], group["largest_ratio"] or None).unbind())


make = LAMB
