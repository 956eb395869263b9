"""AdaGrad in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import decayed, dense, forget, velocities


class Adagrad(torch.optim.Optimizer):
    """Diagonal AdaGrad; a sparse gradient touches its own rows only, unless there is momentum or decay.

    Args:
        parameters: `model.named_parameters()`.
        lr: learning rate η.
        momentum: μ, of the scaled gradient; at 0 no velocity is held.
        weight_decay: λ of the L2 term, added to the gradients of matrices and filters.
        epsilon: ε, added to the root.
        initial_accumulator: δ, added to the sums below the root.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        epsilon: float = 1e-10,
        initial_accumulator: float = 0.0,
    ):
        values = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, values | {"epsilon": epsilon, "initial_accumulator": initial_accumulator})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.zeros_like(parameter)
            velocities(self, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            params = group["params"]
            if not group["momentum"] and not group["weight_decay"]:  # which reach every row of a table
                params = [parameter for parameter in params if not self._by_rows(parameter, group)]
            if not params:
                continue
            grads = decayed(dense(params), params, group["weight_decay"])
            total = [self.state[parameter]["sum"] for parameter in params]
            torch._foreach_addcmul_(total, grads, grads)
            if group["initial_accumulator"]:
                total = torch._foreach_add(total, group["initial_accumulator"])
            scale = torch._foreach_sqrt(total)
            torch._foreach_add_(scale, group["epsilon"])
            if group["momentum"]:
                velocity = velocities(self, group)
                torch._foreach_mul_(velocity, group["momentum"])
                torch._foreach_addcdiv_(velocity, grads, scale)
                torch._foreach_add_(params, velocity, alpha=-group["lr"])
            else:
                torch._foreach_addcdiv_(params, grads, scale, -group["lr"])

    def _by_rows(self, table: Tensor, group: dict[str, Any]) -> bool:
        """Update the rows that a sparse gradient names; whether it was one."""
        if table.grad is None or not table.grad.is_sparse:
            return False
        grad, held = table.grad.coalesce(), self.state[table]["sum"]  # squares of sums: each row must stand there once
        ids, values = grad.indices()[0], grad.values()
        total = held[ids].addcmul_(values, values)
        held.index_copy_(0, ids, total)
        scale = total.add_(group["initial_accumulator"]).sqrt_().add_(group["epsilon"])
        table.index_add_(0, ids, values / scale, alpha=-group["lr"])
        return True

    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        forget(self, moved)


make = Adagrad
