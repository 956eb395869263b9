"""Shampoo in torch."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Reduce
from suite.declared import describe_settings, take_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.torch import (
    Optimizer,
    add_weight_decay,
    densify_gradients,
    edit_weights,
    make_zero_state,
    name_parameters,
    one_rank,
    place_numbers,
    select_with_gradient,
    widen_type,
)
from suite.optimizers._linalg.host import HostRoots
from suite.optimizers._linalg.torch import are_finite, compute_norms, inverse_root
from suite.optimizers.shampoo import Settings
from suite.optimizers.shampoo.plan import ShampooPlan, split_name
from suite.optimizers.shampoo.torch_blocks import cut_blocks, find_touched_rows, join_blocks, multiply_side, unfold_side
from suite.optimizers.shampoo.torch_graft import compute_averaging_weights, compute_grafted_steps, match_lengths

Tree = dict[str, Tensor]
Index = slice | Tensor  # some rows of a stack


@describe_settings(Settings)
class Shampoo(Optimizer[Settings]):
    """Blocked Shampoo with grafting; the rule is in the package's docstring.

    `step()` does everything that is due. The suite's engine shares the roots among ranks instead: it calls `host`
    before a step, `collect` after the gradient, `program` for each of `plan.programs(step)`, and passes `reduce` to
    `step`. `state["shampoo"]["kept"]` counts the roots that could not be refreshed and stayed as they were.

    Each group of parameters has its own statistics, roots and plan, and counts its own steps.

    Args:
        parameters: `model.named_parameters()`, tensors without names, or groups of either.
        tables: names of the embeddings; read if `embeddings` is false.
        shapes: not read.
        world: ranks that share the roots; more than one requires the suite's engine.
        lr: learning rate.
        settings: by name, as listed below.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float | None = None,
        *,
        tables: Collection[str] = (),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        **settings: Any,
    ):
        self.tables, self.world = tuple(tables), world
        self.roots = HostRoots()
        self.plans: list[ShampooPlan] = []  # one for each group
        super().__init__(parameters, take_settings(Settings, lr, settings), ["nesterov"])

    def _begin(self, group: dict[str, Any]) -> None:
        self.names = name_parameters(self)
        shapes = {self.names[parameter]: tuple(parameter.shape) for parameter in group["params"]}
        plan = ShampooPlan(shapes, self.settings, tables=self.tables, world=self.world)
        first, graft = group["params"][0], self.settings.graft
        like = torch.empty(0, dtype=widen_type(first.dtype), device=first.device)

        def stacks(rows: Callable[[str], int]) -> Tree:
            return {stack: like.new_zeros(rows(stack), plan.size(stack), plan.size(stack)) for stack in plan.counts}

        eyes = {stack: torch.eye(plan.size(stack)).to(like) for stack in plan.counts}
        state = self.state[_place(len(self.plans))] = {
            "factor": stacks(plan.counts.__getitem__),
            "root": {stack: eyes[stack].repeat(count, 1, 1) for stack, count in plan.counts.items()},
            "refreshed": False,
            "kept": like.new_zeros((), dtype=torch.int64),
            "steps": 0,
        }
        if plan.stagger:
            state["turn"] = dict.fromkeys(plan.counts, 0)
        if plan.lag:  # slices of each rank: statistics that the host reads, then the roots that it computed
            state["pending"] = {"owned": stacks(plan.share), "epsilon": group["epsilon"]}
        for parameter in group["params"]:
            self.state[parameter]["velocity"] = make_zero_state(parameter, whole=True)
            if graft != "sgd":
                self.state[parameter]["square"] = make_zero_state(parameter, whole=True)
            if graft == "adam":
                self.state[parameter]["mass"] = like.new_zeros(())
        self.plans.append(plan)

    @property
    def plan(self) -> ShampooPlan:
        """Plan of the first group, which is the only one in a run of the suite."""
        return self.plans[0]

    # --------------------------------------------------------------------------------------------------- refreshes
    @torch.no_grad()
    def host(self, step: int, group: int = 0) -> None:
        """Start the host's thread on the statistics that wait for it, and take the roots that are due before `step`."""
        plan, owned = self.plans[group], self.state[_place(group)].get("pending", {}).get("owned", {})
        self._begin_roots(step, group)
        for stack in plan.landing(step):
            roots = self.roots.finish(f"{group}/{stack}", *self._pending(stack, group))
            owned[stack].copy_(torch.from_numpy(roots))

    def _begin_roots(self, step: int, group: int) -> None:
        """Start the host's thread on the statistics that wait for it before `step`."""
        for stack in self.plans[group].flying(step):
            if f"{group}/{stack}" not in self.roots.jobs:
                self.roots.begin(f"{group}/{stack}", *self._pending(stack, group))

    def drain(self) -> None:
        """Wait for the thread."""
        self.roots.drain()

    def _pending(self, stack: str, group: int) -> tuple[Any, int, float]:
        """Return the host's arguments for one stack: statistics, order of the root and ridge."""
        pending = self.state[_place(group)]["pending"]
        return pending["owned"][stack].cpu().numpy().copy(), self.plans[group].order(stack), pending["epsilon"]

    @torch.no_grad()
    def collect(self, group: int = 0) -> None:
        """Add the gradients to the statistics."""
        plan, factor = self.plans[group], self.state[_place(group)]["factor"]
        past, gain = compute_averaging_weights(self.param_groups[group]["beta2"])
        grads = self._gradients(self.param_groups[group])
        for key in plan.stacked:
            if not (members := [name for name in plan.stacked[key] if name in grads]):
                continue
            stack, _ = _blocks(plan, members, grads)
            few = find_touched_rows(stack) if plan.factored[key] == [1] else None
            stack = stack if few is None else stack[:, few]
            for side in plan.factored[key]:
                (name, rows), x = _rows(plan, key, side, members, stack), unfold_side(stack, side)
                if isinstance(rows, slice):
                    factor[name][rows].baddbmm_(x, x.mT, beta=past, alpha=gain)
                else:
                    factor[name][rows] = torch.baddbmm(factor[name][rows], x, x.mT, beta=past, alpha=gain)

    @torch.no_grad()
    def program(self, name: str, *, reduce: Reduce[Tensor], group: int = 0) -> None:
        """Do one of `plan.programs(step)`: refresh roots, each rank those of its slice; one that fails stays."""
        state, (stack, action) = self.state[_place(group)], split_name(name)
        if action == "take":
            owned = reduce.mine(state["factor"][stack], self.plans[group].owners(len(state["factor"][stack])))
            state["pending"]["owned"][stack].copy_(owned)
            state["pending"]["epsilon"] = self.param_groups[group]["epsilon"]
        elif action == "turn":
            self._refresh_in_turn(stack, reduce, group)
        else:
            state["root"][stack] = self._fresh(stack, slice(None), reduce, group, installed=action == "install")

    def _refresh_in_turn(self, stack: str, reduce: Reduce[Tensor], group: int) -> None:
        """Refresh those roots of a stack whose turn it is."""
        state, turns = self.state[_place(group)], self.plans[group].rows(stack)
        turn, roots = state["turn"][stack], state["root"][stack]
        rows = place_numbers(turns[turn % len(turns)], roots, torch.int64)
        state["turn"][stack] = (turn + 1) % len(turns)
        state["root"][stack] = roots.index_put((rows,), self._fresh(stack, rows, reduce, group))

    def _fresh(self, stack: str, rows: Index, reduce: Reduce[Tensor], group: int, *, installed: bool = False) -> Tensor:
        """New roots of some rows of a stack, from all ranks. One that is not finite stays as it was, and is counted.

        Args:
            stack: of statistics.
            rows: that are refreshed.
            reduce: over ranks.
            group: of parameters.
            installed: take the roots that the host computed.
        """
        state, plan = self.state[_place(group)], self.plans[group]
        factor = state["factor"][stack][rows]
        owners = plan.owners(len(factor))
        if installed:
            share = state["pending"]["owned"][stack]
        else:
            epsilon, method = self.param_groups[group]["epsilon"], self.settings.root
            share = inverse_root(reduce.mine(factor, owners), plan.order(stack), epsilon=epsilon, method=method)
        fresh = reduce.gather(f"root/{stack}", share, owners, symmetric=True)
        usable = are_finite(fresh)
        state["kept"] += (~usable).sum()
        state["refreshed"] = True
        return torch.where(usable, fresh, state["root"][stack][rows])

    def facts(self) -> dict[str, float]:
        """How often a root could not be refreshed, for the result."""
        return {"kept": sum(int(self.state[_place(number)]["kept"]) for number in range(len(self.plans)))}

    # ------------------------------------------------------------------------------------------------------ update
    def _update(self, *, reduce: Reduce[Tensor] | None = None) -> None:
        for number, group in enumerate(self.param_groups):
            if not (params := select_with_gradient(group["params"])):
                continue
            state, plan = self.state[_place(number)], self.plans[number]
            if reduce is None:  # no engine has called host, collect and program
                one_rank(self, self.world)
                self.host(state["steps"], number)
                self.collect(number)
                for name in plan.programs(state["steps"]):
                    self.program(name, reduce=ALONE, group=number)
            self._move(params, number)
            state["steps"] += 1
            if reduce is None:
                self._begin_roots(state["steps"], number)

    def _move(self, params: list[Tensor], number: int) -> None:
        """Update the parameters of a group that have a gradient."""
        group = self.param_groups[number]
        grads = self._gradients(group)
        states = [self.state[parameter] for parameter in params]
        steps = compute_grafted_steps(self.settings.graft, grads, states, group["beta2"])
        chosen = list((steps | self._precondition(grads, steps, number)).values())
        velocity = [state["velocity"] for state in states]
        torch._foreach_mul_(velocity, group["momentum"])
        torch._foreach_add_(velocity, chosen)
        ahead = torch._foreach_add(chosen, velocity, alpha=group["momentum"]) if group["nesterov"] else velocity
        with edit_weights(params, whole=True) as values:
            torch._foreach_add_(values, ahead, alpha=-group["lr"])

    def _gradients(self, group: dict[str, Any]) -> Tree:
        """Return the gradients of the parameters that have one, with decay, by name."""
        params = select_with_gradient(group["params"])
        grads = add_weight_decay(densify_gradients(params, whole=True), params, group["weight_decay"])
        return {self.names[parameter]: grad for parameter, grad in zip(params, grads, strict=True)}

    def _precondition(self, grads: Tree, steps: Tree, number: int) -> Tree:
        """Return the steps in Shampoo's direction, by name; {} before the first refresh."""
        state, plan = self.state[_place(number)], self.plans[number]
        done: Tree = {}
        for key in plan.stacked if state["refreshed"] else ():
            if not (members := [name for name in plan.stacked[key] if name in grads]):
                continue
            stack, counts = _blocks(plan, members, grads)
            few = find_touched_rows(stack) if plan.factored[key] == [1] else None
            whole, stack = stack, stack if few is None else stack[:, few]
            for side in plan.factored[key]:
                name, rows = _rows(plan, key, side, members, stack)
                stack = multiply_side(stack, state["root"][name][rows], side)
            if few is not None:
                stack = torch.zeros_like(whole).index_copy_(1, few, stack)
            if self.settings.graft_blocks:
                stack = match_lengths(stack, _blocks(plan, members, steps)[0])
            for name, part in zip(members, stack.split(counts), strict=True):
                done[name] = join_blocks(part, plan.grids[name])
        done = {name: value.reshape_as(steps[name]) for name, value in done.items()}
        if not done or self.settings.graft_blocks:
            return done
        norm, goal = compute_norms(done.values()), compute_norms(steps[name] for name in done)
        torch._foreach_mul_(list(done.values()), (goal / torch.where(norm > 0, norm, 1.0)).unbind())
        known = (norm.isfinite() & goal.isfinite()).unbind()  # squares may overflow
        return {name: torch.where(good, done[name], steps[name]) for name, good in zip(done, known, strict=True)}


def _place(group: int) -> str:
    """Return the key of a group's statistics in the state."""
    return f"shampoo/{group}" if group else "shampoo"


def _blocks(plan: ShampooPlan, members: list[str], grads: Tree) -> tuple[Tensor, list[int]]:
    """Return the blocks of some parameters of one bucket, in one stack, and the number of blocks of each."""
    grids = [plan.grids[name] for name in members]
    counts = [grid.blocks for grid in grids]
    stack = grads[members[0]].new_empty(sum(counts), *grids[0].lengths)
    for name, grid, part in zip(members, grids, stack.split(counts), strict=True):
        cut_blocks(grads[name], grid, part)
    return stack, counts


def _rows(plan: ShampooPlan, key: str, side: int, members: list[str], like: Tensor) -> tuple[str, Index]:
    """Return the stack of statistics of one side of some parameters of a bucket, and their rows there."""
    stack, rows = plan.place[key, side]
    if members == plan.stacked[key]:
        return stack, rows
    chosen = [rows.start + row for row, (name, _) in enumerate(plan.buckets.members[key]) if name in members]
    return stack, place_numbers(chosen, like, torch.int64)


make = Shampoo
