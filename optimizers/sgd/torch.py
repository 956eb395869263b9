"""SGD in torch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import decayed


class SGD(torch.optim.Optimizer):
    """Gradient descent with momentum; decay spares vectors.

    Args:
        parameters: `model.named_parameters()`.
        lr: learning rate η.
        momentum: μ.
        nesterov: look ahead by one momentum step.
        weight_decay: λ of the L2 term, added to the gradients of matrices and filters.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        super().__init__(
            parameters, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        )
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["velocity"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            grads = decayed(group, [parameter.grad for parameter in params])
            velocity = [self.state[parameter]["velocity"] for parameter in params]
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, grads)
            direction = torch._foreach_add(grads, velocity, alpha=momentum) if group["nesterov"] else velocity
            torch._foreach_add_(params, direction, alpha=-group["lr"])


make = SGD
