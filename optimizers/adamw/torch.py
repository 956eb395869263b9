"""AdamW in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import dense, forget


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay; decay spares vectors.

    Args:
        parameters: `model.named_parameters()`.
        lr: learning rate η.
        beta1: of the gradient's average.
        beta2: of the squared gradient's average.
        epsilon: added to the root of the second moment.
        weight_decay: λ; each step takes η λ w from matrices and filters.
        bias_correction: divide both averages by the weight they hold; without it, as BERT was trained.
    """

    state: dict[Any, Any]  # under the key "adamw": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
    ):
        values = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(parameters, values | {"bias_correction": bias_correction})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["first"] = torch.zeros_like(parameter)
                self.state[parameter]["second"] = torch.zeros_like(parameter)
        device = self.param_groups[0]["params"][0].device
        self.state["adamw"] = {"steps": torch.zeros((), dtype=torch.float64, device=device)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        steps = self.state["adamw"]["steps"].add_(1.0)
        for group in self.param_groups:
            params, grads = group["params"], dense(group["params"])
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
            matrices = [parameter for parameter in params if parameter.ndim > 1]
            if matrices and group["weight_decay"]:
                torch._foreach_mul_(matrices, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_addcdiv_(params, mean, scale, -group["lr"])

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        forget(self, moved)


make = AdamW
