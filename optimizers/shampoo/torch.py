"""Shampoo in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from suite.optimizers._base.torch import decayed
from suite.optimizers._linalg.torch import inverse_root
from suite.optimizers.shampoo.plan import GRAFT_EPSILON, ORDER, Grid, ShampooPlan

Tree = dict[str, Tensor]


class Shampoo(torch.optim.Optimizer):
    """Blocked Shampoo with grafting; the rule stands in the package's docstring.

    Call `program` for each of `plan.programs(step)`, then `step`. `state["shampoo"]["kept"]` counts the roots that
    could not be refreshed, so that the previous one was kept.

    Args:
        parameters: `model.named_parameters()`.
        world: ranks that share the roots.
        lr: learning rate η.
        momentum: μ, of the grafted step.
        nesterov: look ahead by one momentum step.
        weight_decay: λ of the L2 term, added to the gradients of matrices and filters.
        beta2: of the statistics' exponential average, and of the graft's; 1 sums instead.
        epsilon: ridge, relative to a statistic's largest eigenvalue.
        block_size: longest side of a block.
        inverse_interval: steps between refreshes.
        start_preconditioning: first step with roots, at least 1; before it the graft's own step is taken.
        graft: whose magnitude each parameter's step has: sgd | adagrad | rmsprop | adam.
        root: eigh | newton | auto, which is eigh on a CPU and newton elsewhere.
    """

    state: dict[Any, Any]  # under the key "shampoo": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        beta2: float = 0.99,
        epsilon: float = 1e-6,
        block_size: int = 128,
        inverse_interval: int = 1,
        start_preconditioning: int = 5,
        graft: str = "sgd",
        root: str = "auto",
    ):
        values = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(parameters, values | {"beta2": beta2, "epsilon": epsilon})
        pairs = [zip(group["param_names"], group["params"], strict=True) for group in self.param_groups]
        self.named: Tree = {name: parameter for group in pairs for name, parameter in group}
        self.graft, self.root = graft, root
        self.plan = ShampooPlan(
            {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            world=world,
            block_size=block_size,
            inverse_interval=inverse_interval,
            start_preconditioning=start_preconditioning,
            graft=graft,
            root=root,
        )
        like, sizes, count = next(iter(self.named.values())).detach(), self.plan.sizes, self.plan.count
        self.state["shampoo"] = {
            "factor": {key: like.new_zeros(count(key), size, size) for key, size in sizes.items()},
            "root": {key: torch.eye(size).to(like).repeat(count(key), 1, 1) for key, size in sizes.items()},
            "refreshed": like.new_zeros((), dtype=torch.bool),
            "kept": like.new_zeros((), dtype=torch.int64),
            "mass": like.new_zeros(()),
        }
        for parameter in self.named.values():
            self.state[parameter]["velocity"] = torch.zeros_like(parameter)
            if graft != "sgd":
                self.state[parameter]["square"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def program(self, name: str, *, reduce: Any) -> None:
        """Refresh one stack of roots; each rank takes those of its slice, and a failed one stays as it was."""
        state = self.state["shampoo"]
        stack = functional.pad(state["factor"][name], (0, 0, 0, 0, 0, self.plan.filler(name)))
        mine = inverse_root(reduce.mine(stack), ORDER, epsilon=self.param_groups[0]["epsilon"], method=self.root)
        root = reduce.gather(f"root/{name}", mine)[: self.plan.count(name)]
        usable = root.isfinite().all(-1).all(-1)
        state["root"][name] = torch.where(usable[:, None, None], root, state["root"][name])
        state["kept"] += (~usable).sum()
        state["refreshed"].fill_(True)

    def facts(self) -> dict[str, float]:
        """How often the previous one was kept, for the result."""
        return {"kept": int(self.state["shampoo"]["kept"])}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        grads: Tree = {}
        for group in self.param_groups:
            found = [parameter.grad for parameter in group["params"]]
            grads |= zip(group["param_names"], decayed(found, group["params"], group["weight_decay"]), strict=True)
        steps = self._graft(grads)
        direction = steps | self._precondition(grads, steps)
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            chosen = [direction[name] for name in group["param_names"]]
            velocity = [self.state[parameter]["velocity"] for parameter in params]
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, chosen)
            ahead = torch._foreach_add(chosen, velocity, alpha=momentum) if group["nesterov"] else velocity
            torch._foreach_add_(params, ahead, alpha=-group["lr"])

    def _weights(self) -> tuple[float, float]:
        """What the past and the present count in an average, or in a sum."""
        beta2 = self.param_groups[0]["beta2"]
        return beta2, 1.0 - beta2 if beta2 < 1 else 1.0

    def _graft(self, grads: Tree) -> Tree:
        """The grafted method's own steps, without learning rate and momentum."""
        past, present = self._weights()
        mass = self.state["shampoo"]["mass"].mul_(past).add_(present)
        if self.graft == "sgd":
            return grads
        values = list(grads.values())
        square = [self.state[self.named[name]]["square"] for name in grads]
        if self.graft == "adagrad":
            past, present = 1.0, 1.0
        torch._foreach_mul_(square, past)
        torch._foreach_addcmul_(square, values, values, present)
        scale = torch._foreach_sqrt(torch._foreach_div(square, mass) if self.graft == "adam" else square)
        torch._foreach_add_(scale, GRAFT_EPSILON)
        return dict(zip(grads, torch._foreach_div(values, scale), strict=True))

    def _precondition(self, grads: Tree, steps: Tree) -> Tree:
        """Add the matrices' gradients to the statistics; returns their steps, in Shampoo's direction once known."""
        state, grids, done = self.state["shampoo"], self.plan.grids, {}
        past, present = self._weights()
        for key, names in self.plan.stacked.items():
            stack = torch.cat([cut(grads[name], grids[name]) for name in names])
            state["factor"][f"{key}/left"].baddbmm_(stack, stack.mT, beta=past, alpha=present)
            state["factor"][f"{key}/right"].baddbmm_(stack.mT, stack, beta=past, alpha=present)
            stack = state["root"][f"{key}/left"] @ stack @ state["root"][f"{key}/right"]
            parts = stack.split([grids[name].blocks for name in names])
            done |= {name: join(part, grids[name]) for name, part in zip(names, parts, strict=True)}
        if not done:
            return {}
        norms = torch._foreach_norm(list(done.values()))
        wanted = torch._foreach_norm([steps[name] for name in done])
        for name, norm, goal in zip(done, norms, wanted, strict=True):
            known = state["refreshed"] & (norm > 0)
            scaled = done[name].reshape_as(steps[name]) * (goal / torch.where(known, norm, 1.0))
            done[name] = torch.where(known, scaled, steps[name])
        return done


def cut(value: Tensor, grid: Grid) -> Tensor:
    """A parameter's blocks, row by row: (blocks, height, width)."""
    below, right = grid.down * grid.height - grid.rows, grid.across * grid.width - grid.columns
    padded = functional.pad(value.reshape(grid.rows, grid.columns), (0, right, 0, below))
    apart = padded.view(grid.down, grid.height, grid.across, grid.width)
    return apart.transpose(1, 2).reshape(-1, grid.height, grid.width)


def join(blocks: Tensor, grid: Grid) -> Tensor:
    """The matrix (rows, columns) that `cut` made these blocks of."""
    apart = blocks.view(grid.down, grid.across, grid.height, grid.width).transpose(1, 2)
    whole = apart.reshape(grid.down * grid.height, grid.across * grid.width)
    return whole[: grid.rows, : grid.columns]


make = Shampoo
