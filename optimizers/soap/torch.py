"""SOAP in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import by_name, dense
from suite.optimizers.soap.plan import SOAPPlan

Tree = dict[str, Tensor]


class SOAP(torch.optim.Optimizer):
    """Adam in Shampoo's eigenbasis; the rule stands in the package's docstring.

    Call `program` for each of `plan.programs(step)`, then `step`. `state["soap"]["kept"]` counts the bases that could
    not be refreshed, so that the previous one was kept. `plan.precondition_frequency` may be edited at any time.

    Args:
        parameters: `model.named_parameters()`.
        world: ranks that share the bases.
        lr: learning rate η.
        beta1: of the gradient's average.
        beta2: of the averages of the squared gradient and of the statistics.
        epsilon: added to the root of the second moment.
        weight_decay: λ; each step takes η λ w from matrices and filters.
        precondition_frequency: steps between refreshes.
        start_preconditioning: first step with bases, at least 1; before it the step is AdamW's.
        max_size: longest side that has a basis.
        one_sided: the longer of two unequal sides has none.
    """

    state: dict[Any, Any]  # under the key "soap": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        lr: float = 3e-3,
        beta1: float = 0.95,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        start_preconditioning: int = 1,
        max_size: int = 512,
        one_sided: bool = False,
    ):
        values = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(parameters, values)
        self.named = by_name(self)
        self.plan = SOAPPlan(
            {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            world=world,
            max_size=max_size,
            one_sided=one_sided,
            precondition_frequency=precondition_frequency,
            start_preconditioning=start_preconditioning,
        )
        like, sizes, count = next(iter(self.named.values())).detach(), self.plan.sizes, self.plan.count
        stacks = {key: (len(names), *map(int, key.split("x"))) for key, names in self.plan.members.items()}
        self.state["soap"] = {
            "factor": {basis: like.new_zeros(count(basis), size, size) for basis, size in sizes.items()},
            "basis": {basis: torch.eye(size).to(like).repeat(count(basis), 1, 1) for basis, size in sizes.items()},
            "first": {key: like.new_zeros(shape) for key, shape in stacks.items()},
            "second": {key: like.new_zeros(shape) for key, shape in stacks.items()},
            "kept": like.new_zeros((), dtype=torch.int64),
            "steps": like.new_zeros((), dtype=torch.float64),
        }
        for name in self.plan.rest:
            for moment in ("first", "second"):
                self.state[self.named[name]][moment] = torch.zeros_like(self.named[name])

    @torch.no_grad()
    def program(self, name: str, *, reduce: Any) -> None:
        """Refresh the bases of one size; each rank takes those of its slice, and a failed one stays as it was."""
        state, stacks, owners = self.state["soap"], self.plan.equal[name], self.plan.owners(name)
        start = bool(state["steps"] == self.plan.start)
        together = [torch.cat([state[kind][at] for at in stacks]) for kind in ("factor", "basis")]
        mine = [reduce.mine(stack, owners) for stack in together]
        fresh = reduce.gather(f"basis/{name}", refreshed(*mine, start=start), owners)
        usable = fresh.isfinite().all(-1).all(-1)
        fresh = torch.where(usable[:, None, None], fresh, together[1])
        for at, new in zip(stacks, fresh.split([self.plan.count(at) for at in stacks]), strict=True):
            key, side = at.split("/")
            turn, first = new.mT @ state["basis"][at], state["first"][key]
            state["first"][key] = turn @ first if side == "left" else first @ turn.mT
            state["basis"][at].copy_(new)
        state["kept"] += (~usable).sum()

    def facts(self) -> dict[str, float]:
        """How often the previous one was kept, for the result."""
        return {"kept": int(self.state["soap"]["kept"])}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        shared, plan, at = self.state["soap"], self.plan, self.param_groups[0]
        steps = shared["steps"].add_(1.0)
        grads: Tree = dict(zip(self.named, dense(list(self.named.values())), strict=True))
        moments = [self.state[self.named[name]] for name in plan.rest]
        turned = [self._absorb(key, [grads[name] for name in names]) for key, names in plan.members.items()]
        turned += [grads[name] for name in plan.rest]
        first = [*shared["first"].values(), *(moment["first"] for moment in moments)]
        second = [*shared["second"].values(), *(moment["second"] for moment in moments)]
        torch._foreach_lerp_(first, turned, 1.0 - at["beta1"])
        torch._foreach_mul_(second, at["beta2"])
        torch._foreach_addcmul_(second, turned, turned, 1.0 - at["beta2"])
        scale = torch._foreach_sqrt(second)
        torch._foreach_mul_(scale, (1.0 / (1.0 - at["beta2"] ** steps).sqrt()).to(first[0].dtype))
        torch._foreach_add_(scale, at["epsilon"])
        torch._foreach_mul_(scale, (1.0 - at["beta1"] ** steps).to(first[0].dtype))
        done = torch._foreach_div(first, scale)
        direction = dict(zip(plan.rest, done[len(plan.members) :], strict=True))
        for (key, names), stack in zip(plan.members.items(), done, strict=False):
            direction |= zip(names, self._turn(key, stack, back=True).unbind(), strict=True)
        for group in self.param_groups:
            params = group["params"]
            chosen = [direction[name].view_as(self.named[name]) for name in group["param_names"]]
            matrices = [parameter for parameter in params if parameter.ndim > 1]
            if matrices and group["weight_decay"]:
                torch._foreach_mul_(matrices, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, chosen, alpha=-group["lr"])

    def _absorb(self, key: str, grads: list[Tensor]) -> Tensor:
        """Add one bucket's gradients to the statistics; returns their stack in the bases' coordinates."""
        factor, beta2 = self.state["soap"]["factor"], self.param_groups[0]["beta2"]
        rows, columns = map(int, key.split("x"))
        stack = torch.stack([grad.reshape(rows, columns) for grad in grads])
        if f"{key}/left" in factor:
            factor[f"{key}/left"].baddbmm_(stack, stack.mT, beta=beta2, alpha=1.0 - beta2)
        if f"{key}/right" in factor:
            factor[f"{key}/right"].baddbmm_(stack.mT, stack, beta=beta2, alpha=1.0 - beta2)
        return self._turn(key, stack)

    def _turn(self, key: str, stack: Tensor, *, back: bool = False) -> Tensor:
        """Q_Lᵀ X Q_R, or `back` from there."""
        left, right = (self.state["soap"]["basis"].get(f"{key}/{side}") for side in ("left", "right"))
        if left is not None:
            stack = (left if back else left.mT) @ stack
        if right is not None:
            stack = stack @ (right.mT if back else right)
        return stack


def refreshed(factor: Tensor, basis: Tensor, *, start: bool) -> Tensor:
    """Bases of eigenvectors (count, n, n), not finite where there is none.

    Args:
        factor: statistics (count, n, n).
        basis: what they are refreshed from, by one power iteration.
        start: decompose the statistics instead.
    """
    size, limits = factor.shape[-1], torch.finfo(factor.dtype)
    mean = factor.diagonal(dim1=-2, dim2=-1).mean(-1)
    usable = (factor.isfinite().all(-1).all(-1) & (mean >= limits.tiny))[:, None, None]
    safe = torch.where(usable, factor, torch.eye(size, dtype=factor.dtype, device=factor.device))
    if start:
        try:
            found = torch.linalg.eigh(safe)[1].contiguous()
        except torch.linalg.LinAlgError:  # one matrix that does not converge fails the whole call
            return torch.full_like(factor, torch.nan)
    else:
        power = safe @ basis
        estimate = (basis * power).sum(-2, keepdim=True)
        power = power + size * limits.eps * estimate.amax(-1, keepdim=True) * basis
        order = estimate.argsort(dim=-1, descending=True, stable=True)
        found = torch.linalg.qr(power.take_along_dim(order, -1))[0]
        found = found.take_along_dim(order.argsort(-1), -1)  # columns back in their places
    return torch.where(usable, found, torch.nan)


make = SOAP
