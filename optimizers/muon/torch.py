"""Muon in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer
from suite.optimizers._base.torch import by_name, dense
from suite.optimizers.muon.plan import COEFFICIENTS, NORM, WIDE, MuonPlan

Tree = dict[str, Tensor]


class Muon(torch.optim.Optimizer):
    """Momentum with singular values close to one, and AdamW for the rest; the rule stands in the package's docstring.

    Args:
        parameters: `model.named_parameters()`.
        layers: the model's layers, by module name.
        lr: learning rate η of the treated matrices.
        momentum: μ.
        nesterov: look ahead by one momentum step.
        weight_decay: λ; each step takes η λ w from matrices and filters, AdamW's at its own rate.
        iterations: of Newton and Schulz.
        scale: of a step by its matrix's sides: original | match_rms_adamw.
        excluded: names of layers that AdamW treats; None: the last linear layer.
        bfloat16: round the iteration to it, as published.
        fallback_ratio: AdamW's learning rate over η.
        fallback_beta1: AdamW's average of the gradient.
        fallback_beta2: AdamW's average of the squared gradient.
        fallback_epsilon: added to the root of AdamW's second moment.
    """

    state: dict[Any, Any]  # under the key "muon": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.01,
        iterations: int = 5,
        scale: str = "original",
        excluded: Iterable[str] | None = None,
        bfloat16: bool = False,
        fallback_ratio: float = 0.1,
        fallback_beta1: float = 0.9,
        fallback_beta2: float = 0.95,
        fallback_epsilon: float = 1e-8,
    ):
        values = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        values |= {"iterations": iterations, "bfloat16": bfloat16, "fallback_ratio": fallback_ratio}
        values |= {"fallback_beta1": fallback_beta1, "fallback_beta2": fallback_beta2}
        super().__init__(parameters, values | {"fallback_epsilon": fallback_epsilon})
        self.named = by_name(self)
        found = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        self.arrangement = MuonPlan(layers, found, excluded=excluded, scale=scale)
        for name in self.arrangement.sides:
            self.state[self.named[name]]["momentum"] = torch.zeros_like(self.named[name])
        for name in self.arrangement.rest:
            for moment in ("first", "second"):
                self.state[self.named[name]][moment] = torch.zeros_like(self.named[name])
        device = self.param_groups[0]["params"][0].device
        self.state["muon"] = {"steps": torch.zeros((), dtype=torch.float64, device=device)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        steps = self.state["muon"]["steps"].add_(1.0)
        for group in self.param_groups:
            named = dict(zip(group["param_names"], group["params"], strict=True))
            matrices = [parameter for parameter in group["params"] if parameter.ndim > 1]
            if group["weight_decay"]:
                for parameters, ratio in self._shares(matrices, group["fallback_ratio"]):
                    torch._foreach_mul_(parameters, 1.0 - ratio * group["lr"] * group["weight_decay"])
            treated = {name: parameter for name, parameter in named.items() if name in self.arrangement.sides}
            if treated:
                self._orthogonal(treated, group)
            rest = [parameter for name, parameter in named.items() if name not in treated]
            if rest:
                self._adamw(rest, group, steps)

    def _shares(self, matrices: list[Tensor], ratio: float) -> list[tuple[list[Tensor], float]]:
        """The matrices of each method, with its learning rate over η."""
        mine = [parameter for parameter in matrices if "momentum" in self.state[parameter]]
        others = [parameter for parameter in matrices if "momentum" not in self.state[parameter]]
        return [(found, rate) for found, rate in ((mine, 1.0), (others, ratio)) if found]

    def _orthogonal(self, named: Tree, group: dict[str, Any]) -> None:
        """Muon's own step, stack by stack."""
        plan, momentum = self.arrangement, group["momentum"]
        grads = dense(list(named.values()))
        buffers = [self.state[parameter]["momentum"] for parameter in named.values()]
        torch._foreach_lerp_(buffers, grads, 1.0 - momentum)
        ahead = torch._foreach_lerp(grads, buffers, momentum) if group["nesterov"] else buffers
        flat = {name: value.flatten(1) for name, value in zip(named, ahead, strict=True)}
        for members in plan.stacks.values():
            names = [name for name in members if name in named]
            if not names:
                continue
            stack = torch.stack([flat[name].mT if plan.tall(name) else flat[name] for name in names])
            done = newton_schulz(stack, group["iterations"], bfloat16=group["bfloat16"])
            scales = done.new_tensor([-group["lr"] * plan.factor[name] for name in names])
            done.mul_(scales[:, None, None])
            parts = [part.mT if plan.tall(name) else part for name, part in zip(names, done.unbind(), strict=True)]
            for name, part in zip(names, parts, strict=True):
                named[name].add_(part.reshape(named[name].shape))

    def _adamw(self, params: list[Tensor], group: dict[str, Any], steps: Tensor) -> None:
        """AdamW's step for what Muon does not treat; decay is done."""
        grads = dense(params)
        first = [self.state[parameter]["first"] for parameter in params]
        second = [self.state[parameter]["second"] for parameter in params]
        beta1, beta2 = group["fallback_beta1"], group["fallback_beta2"]
        torch._foreach_lerp_(first, grads, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1.0 - beta2**steps).sqrt().to(first[0].dtype))
        torch._foreach_add_(scale, group["fallback_epsilon"])
        torch._foreach_mul_(scale, (1.0 - beta1**steps).to(first[0].dtype))
        torch._foreach_addcdiv_(params, first, scale, -group["fallback_ratio"] * group["lr"])


def newton_schulz(stack: Tensor, iterations: int, *, bfloat16: bool = False) -> Tensor:
    """Each matrix with its singular values brought close to one.

    Wide matrices are iterated on by their Gram matrix: all factors are polynomials in X Xᵀ and commute. In bfloat16
    that would lose the small singular values.

    Args:
        stack: (count, rows, columns), rows ≤ columns.
        iterations: 0 only normalises.
        bfloat16: round to it.

    Returns:
        A new tensor of the same shape and type.
    """
    a, b, c = COEFFICIENTS
    kind, (rows, columns) = stack.dtype, stack.shape[-2:]
    x = stack / torch.linalg.matrix_norm(stack, keepdim=True).clamp(min=NORM)
    if bfloat16 or columns < WIDE * rows or not iterations:
        x = x.bfloat16() if bfloat16 else x
        for _ in range(iterations):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.to(kind)
    product = gram = x @ x.mT
    for iteration in range(iterations):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor @ product if iteration else factor
        if iteration < iterations - 1:
            gram = factor @ (gram @ factor)
    return product @ x


make = Muon
