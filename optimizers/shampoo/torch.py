"""Shampoo in torch."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import by_name, decayed
from suite.optimizers._linalg.host import HostRoots
from suite.optimizers._linalg.torch import finite, inverse_root
from suite.optimizers.shampoo.plan import GRAFT_EPSILON, ShampooPlan, split_name
from suite.optimizers.shampoo.torch_blocks import along, cut, join, touched, turned

Tree = dict[str, Tensor]


class Shampoo(torch.optim.Optimizer):
    """Blocked Shampoo with grafting; the rule stands in the package's docstring.

    Before a step call `host` if there is a lag, after the gradient `program` for each of `plan.programs(step)`, then
    `step`. `state["shampoo"]["kept"]` counts the roots that could not be refreshed, so that the previous one was kept.

    Args:
        parameters: `model.named_parameters()`.
        tables: names of the embeddings; asked where `embeddings` is false.
        world: ranks that share the roots.
        lr: learning rate η.
        momentum: μ, of the grafted step.
        nesterov: look ahead by one momentum step.
        weight_decay: λ of the L2 term, added to the gradients of matrices and filters.
        beta2: of the statistics' exponential average, and of the graft's; 1 sums instead.
        epsilon: ridge, relative to a statistic's largest eigenvalue.
        block_size: longest side of a block.
        reshape: the tensor whose sides have statistics: matrix | merge | none.
        merge_size: longest merged side.
        exponent: p of the roots A^(-1/p); None: twice the number of factors.
        max_size: a side longer than this has no factor; None: each has.
        large: what becomes of a parameter with such a side: one_sided (the other sides have factors) | skip.
        embeddings: precondition them too.
        inverse_interval: steps between refreshes.
        start_preconditioning: first step with roots, at least 1; before it the graft's own step is taken.
        lag: steps after which a host thread's roots are installed; 0: no thread.
        stagger: spread a refresh over the steps of an interval.
        graft: whose magnitude each parameter's step has: sgd | adagrad | rmsprop | adam.
        root: eigh | eigh32 | newton | auto, which is eigh on a CPU and newton elsewhere.
    """

    state: dict[Any, Any]  # under the key "shampoo": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        tables: Collection[str] = (),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        beta2: float = 0.99,
        epsilon: float = 1e-6,
        graft: str = "sgd",
        root: str = "auto",
        **options: Any,
    ):
        values = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(parameters, values | {"beta2": beta2, "epsilon": epsilon})
        self.named = by_name(self)
        self.graft, self.root = graft, root
        sides = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        self.plan = plan = ShampooPlan(sides, tables, world=world, graft=graft, root=root, **options)
        self.roots = HostRoots()
        like = next(iter(self.named.values())).detach()

        def stacks(rows: Callable[[str], int]) -> Tree:
            return {at: like.new_zeros(rows(at), plan.size(at), plan.size(at)) for at in plan.counts}

        self.state["shampoo"] = {
            "factor": stacks(plan.counts.__getitem__),
            "root": {at: torch.eye(plan.size(at)).to(like).repeat(count, 1, 1) for at, count in plan.counts.items()},
            "refreshed": False,
            "kept": like.new_zeros((), dtype=torch.int64),
            "mass": like.new_zeros(()),
        }
        if plan.stagger:
            self.state["shampoo"]["turn"] = dict.fromkeys(plan.counts, 0)
        if plan.lag:  # each rank's own slices: statistics on their way to the host, then the roots that come back
            owned = stacks(plan.share)
            self.state["shampoo"]["pending"] = {"owned": owned, "epsilon": epsilon}
        for parameter in self.named.values():
            self.state[parameter]["velocity"] = torch.zeros_like(parameter)
            if graft != "sgd":
                self.state[parameter]["square"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def host(self, step: int) -> None:
        """Let a thread work at the statistics that were handed in, and take the roots that are due before `step`."""
        for stack in self.plan.flying(step):
            if stack not in self.roots.jobs:
                self.roots.begin(stack, *self._handed_in(stack))
        for stack in self.plan.landing(step):
            found = torch.from_numpy(self.roots.finish(stack, *self._handed_in(stack)))
            self.state["shampoo"]["pending"]["owned"][stack].copy_(found)

    def drain(self) -> None:
        """Wait for the thread."""
        self.roots.drain()

    def _handed_in(self, stack: str) -> tuple[Any, int, float]:
        pending = self.state["shampoo"]["pending"]
        return pending["owned"][stack].cpu().numpy().copy(), self.plan.order(stack), pending["epsilon"]

    @torch.no_grad()
    def program(self, name: str, *, reduce: Any) -> None:
        """Refresh a stack of roots or some of them, each rank those of its slice; a failed one stays as it was."""
        state, plan, (stack, what) = self.state["shampoo"], self.plan, split_name(name)
        if what == "take":
            owned = reduce.mine(state["factor"][stack], plan.owners(plan.counts[stack]))
            state["pending"]["owned"][stack].copy_(owned)
            state["pending"]["epsilon"] = self.param_groups[0]["epsilon"]
            return
        rows: Any = slice(None)
        if what == "turn":
            turns = plan.rows(stack)
            rows = torch.tensor(turns[state["turn"][stack] % len(turns)], device=state["root"][stack].device)
            state["turn"][stack] = (state["turn"][stack] + 1) % len(turns)
        old = state["root"][stack][rows]
        owners = plan.owners(len(old))
        if what == "install":
            mine = state["pending"]["owned"][stack]
        else:
            share = reduce.mine(state["factor"][stack][rows], owners)
            epsilon = self.param_groups[0]["epsilon"]
            mine = inverse_root(share, plan.order(stack), epsilon=epsilon, method=self.root)
        fresh = reduce.gather(f"root/{stack}", mine, owners, symmetric=True)
        usable = finite(fresh)
        chosen = torch.where(usable, fresh, old)
        state["root"][stack] = state["root"][stack].index_put((rows,), chosen) if what == "turn" else chosen
        state["kept"] += (~usable).sum()
        state["refreshed"] = True

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
        """Add the gradients to the statistics; returns the steps in Shampoo's direction, once there are roots."""
        state, plan = self.state["shampoo"], self.plan
        past, present = self._weights()
        done: Tree = {}
        for key, names in plan.stacked.items():
            grids = [plan.grids[name] for name in names]
            counts = [grid.blocks for grid in grids]
            stack = grads[names[0]].new_empty(sum(counts), *grids[0].lengths)
            for name, grid, part in zip(names, grids, stack.split(counts), strict=True):
                cut(grads[name], grid, part)
            few = touched(stack) if plan.factored[key] == [1] else None
            whole, stack = stack, stack if few is None else stack[:, few]
            for side in plan.factored[key]:
                (where, rows), x = plan.place[key, side], along(stack, side)
                state["factor"][where][rows].baddbmm_(x, x.mT, beta=past, alpha=present)
            if not state["refreshed"]:
                continue
            for side in plan.factored[key]:
                where, rows = plan.place[key, side]
                stack = turned(stack, state["root"][where][rows], side)
            if few is not None:
                stack = torch.zeros_like(whole).index_copy_(1, few, stack)
            for name, grid, part in zip(names, grids, stack.split(counts), strict=True):
                done[name] = join(part, grid)
        if not done:
            return {}
        norm = torch.stack(torch._foreach_norm(list(done.values())))
        goal = torch.stack(torch._foreach_norm([steps[name] for name in done]))
        done = {name: value.reshape_as(steps[name]) for name, value in done.items()}
        torch._foreach_mul_(list(done.values()), (goal / torch.where(norm > 0, norm, 1.0)).unbind())
        return done


make = Shampoo
