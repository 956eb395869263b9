"""SGD in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import decayed, dense, forget


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
            momentum, params = group["momentum"], group["params"]
            if not momentum and not group["weight_decay"]:  # which reach every row of a table
                params = [parameter for parameter in params if not self._by_rows(parameter, group["lr"])]
            grads = decayed(dense(params), params, group["weight_decay"])
            velocity = [self.state[parameter]["velocity"] for parameter in params]
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, grads)
            direction = torch._foreach_add(grads, velocity, alpha=momentum) if group["nesterov"] else velocity
            torch._foreach_add_(params, direction, alpha=-group["lr"])

    @staticmethod
    def _by_rows(table: Tensor, lr: float) -> bool:
        """Update the rows that a sparse gradient names; whether it was one."""
        grad = table.grad
        if grad is None or not grad.is_sparse:
            return False
        table.index_add_(0, grad.indices()[0], grad.values(), alpha=-lr)
        return True

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        forget(self, moved)


make = SGD
