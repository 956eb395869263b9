"""RMSProp in torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import decayed, dense, forget, velocities


class RMSprop(torch.optim.Optimizer):
    """Gradients divided by the root of their squares' recent average.

    Args:
        parameters: `model.named_parameters()`.
        lr: learning rate η.
        momentum: μ, of the scaled gradient; at 0 no velocity is held.
        beta2: of the squared gradient's average.
        epsilon: ε, added to the root; with `tensorflow` below it.
        weight_decay: λ of the L2 term, added to the gradients of matrices and filters.
        centered: subtract the squared mean of the gradient, so that the root is of a variance.
        tensorflow: as TensorFlow's first version: ε below the root, averages begin at 1, velocity holds η.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float = 1e-3,
        momentum: float = 0.0,
        beta2: float = 0.9,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        centered: bool = False,
        tensorflow: bool = False,
    ):
        values = {"lr": lr, "momentum": momentum, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(parameters, values)
        self.centered, self.tensorflow = centered, tensorflow
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["second"] = torch.full_like(parameter, float(tensorflow))
                if centered:
                    self.state[parameter]["mean"] = torch.zeros_like(parameter)
            velocities(self, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            params, beta2, rate = group["params"], group["beta2"], group["lr"]
            grads = decayed(dense(params), params, group["weight_decay"])
            second = [self.state[parameter]["second"] for parameter in params]
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
            if self.centered:
                mean = [self.state[parameter]["mean"] for parameter in params]
                torch._foreach_lerp_(mean, grads, 1.0 - beta2)
                second = torch._foreach_addcmul(second, mean, mean, -1.0)
                torch._foreach_clamp_min_(second, 0.0)  # a constant gradient has no variance, but rounding errors
            scale = self._scale(second, group["epsilon"])
            if group["momentum"]:
                velocity = velocities(self, group)
                torch._foreach_mul_(velocity, group["momentum"])
                torch._foreach_addcdiv_(velocity, grads, scale, rate if self.tensorflow else 1.0)
                torch._foreach_add_(params, velocity, alpha=-1.0 if self.tensorflow else -rate)
            else:
                torch._foreach_addcdiv_(params, grads, scale, -rate)

    def _scale(self, second: Sequence[Tensor], epsilon: float) -> list[Tensor]:
        """What the gradients are divided by."""
        if self.tensorflow:
            scale = torch._foreach_add(list(second), epsilon)
            torch._foreach_sqrt_(scale)
        else:
            scale = torch._foreach_sqrt(list(second))
            torch._foreach_add_(scale, epsilon)
        return list(scale)

    @torch.no_grad()
    def reset(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Start again at blocks that have moved: {parameter (n, …): (n,) booleans}."""
        forget(self, moved)
        for parameter, mask in moved.items():
            self.state[parameter]["second"][mask] = float(self.tensorflow)


make = RMSprop
