"""SOAP in torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Reduce
from suite.declared import describe_settings, take_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.torch import (
    Optimizer,
    densify_gradients,
    edit_weights,
    make_zero_state,
    name_parameters,
    one_rank,
    place_numbers,
    select_with_gradient,
    widen_type,
)
from suite.optimizers.soap import Settings
from suite.optimizers.soap.plan import SOAPPlan

Tree = dict[str, Tensor]
Index = slice | Tensor  # some rows of a stack


@describe_settings(Settings)
class SOAP(Optimizer[Settings]):
    """Adam in Shampoo's eigenbasis; the rule is in the package's docstring.

    `step()` does everything that is due. The suite's engine shares the bases among ranks instead: it calls `program`
    for each of `plan.programs(step)`, and passes `reduce` to `step`. `state["soap"]["kept"]` counts the bases that
    could not be refreshed and stayed as they were. `plan.precondition_frequency` may be edited at any time.

    Each group of parameters has its own statistics, bases and plan, and counts its own steps.

    Args:
        parameters: `model.named_parameters()`, tensors without names, or groups of either.
        shapes: not read.
        world: ranks that share the bases; more than one requires the suite's engine.
        lr: learning rate.
        settings: by name, as listed below.
    """

    compiles = False

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float | None = None,
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        **settings: Any,
    ):
        self.world = world
        self.plans: list[SOAPPlan] = []  # one for each group
        self.started = set[int]()  # groups known to be past their first refresh
        super().__init__(parameters, take_settings(Settings, lr, settings))

    def _begin(self, group: dict[str, Any]) -> None:
        self.names = name_parameters(self)
        named = {self.names[parameter]: parameter for parameter in group["params"]}
        shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        plan = SOAPPlan(shapes, self.settings, world=self.world)
        first, sizes, count = group["params"][0], plan.sizes, plan.count
        like = torch.empty(0, dtype=widen_type(first.dtype), device=first.device)
        stacks = {key: (len(members), *map(int, key.split("x"))) for key, members in plan.members.items()}
        self.state[_place(len(self.plans))] = {
            "factor": {basis: like.new_zeros(count(basis), size, size) for basis, size in sizes.items()},
            "basis": {basis: torch.eye(size).to(like).repeat(count(basis), 1, 1) for basis, size in sizes.items()},
            "first": {key: like.new_zeros(shape) for key, shape in stacks.items()},
            "second": {key: like.new_zeros(shape) for key, shape in stacks.items()},
            "kept": like.new_zeros((), dtype=torch.int64),
            "steps": like.new_zeros((), dtype=torch.float64),
        }
        for name in plan.rest:
            for moment in ("first", "second"):
                self.state[named[name]][moment] = make_zero_state(named[name], whole=True)
        for parameter in group["params"]:
            self.state[parameter].setdefault("missed", 0)  # checkpoints in files have no empty states
        self.plans.append(plan)

    @property
    def plan(self) -> SOAPPlan:
        """Plan of the first group, which is the only one in a run of the suite."""
        return self.plans[0]

    @torch.no_grad()
    def program(self, name: str, *, reduce: Reduce[Tensor], group: int = 0) -> None:
        """Refresh the bases of one size, each rank those of its slice; a basis that fails stays as it was."""
        state, plan = self.state[_place(group)], self.plans[group]
        stacks, owners = plan.equal[name], plan.owners(name)
        start = self._is_first(group)
        factors, bases = (torch.cat([state[kind][stack] for stack in stacks]) for kind in ("factor", "basis"))
        share = (reduce.mine(factors, owners), reduce.mine(bases, owners))
        fresh = reduce.gather(f"basis/{name}", refresh_basis(*share, start=start), owners)
        usable = fresh.isfinite().all(-1).all(-1)
        fresh = torch.where(usable[:, None, None], fresh, bases)
        for stack, new in zip(stacks, fresh.split([plan.count(stack) for stack in stacks]), strict=True):
            key, side = stack.split("/")
            rotation, first = new.mT @ state["basis"][stack], state["first"][key]
            state["first"][key] = rotation @ first if side == "left" else first @ rotation.mT
            state["basis"][stack].copy_(new)
        state["kept"] += (~usable).sum()

    def _is_first(self, group: int) -> bool:
        """Return whether a refresh is a group's first. After a later one, the host need not ask the device again."""
        if group not in self.started and bool(self.state[_place(group)]["steps"] != self.plans[group].start):
            self.started.add(group)
        return group not in self.started

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`, as in the base class."""
        super().load_state_dict(state_dict)
        self.started.clear()

    def facts(self) -> dict[str, float]:
        """How often a basis could not be refreshed, for the result."""
        return {"kept": sum(int(self.state[_place(number)]["kept"]) for number in range(len(self.plans)))}

    def _update(self, *, reduce: Reduce[Tensor] | None = None) -> None:
        for number, group in enumerate(self.param_groups):
            if not select_with_gradient(group["params"]):
                continue
            if reduce is None:  # no engine has called `program`
                one_rank(self, self.world)
                for name in self.plans[number].programs(int(self.state[_place(number)]["steps"])):
                    self.program(name, reduce=ALONE, group=number)
            self._move(number)

    def _move(self, number: int) -> None:
        """Update the parameters of a group that have a gradient."""
        group = self.param_groups[number]
        named = {self.names[parameter]: parameter for parameter in select_with_gradient(group["params"])}
        self.state[_place(number)]["steps"].add_(1.0)
        direction = self._direction(number, named)
        with edit_weights(list(named.values()), whole=True) as values:
            matrices = [value for value in values if value.ndim > 1]
            if matrices and group["weight_decay"]:
                torch._foreach_mul_(matrices, 1.0 - group["lr"] * group["weight_decay"])
            steps = [direction[name].view_as(parameter) for name, parameter in named.items()]
            torch._foreach_add_(values, steps, alpha=-group["lr"])

    def _direction(self, number: int, named: Tree) -> Tree:
        """Adam's directions of these parameters, in their own coordinates; updates statistics and moments."""
        plan = self.plans[number]
        grads = dict(zip(named, densify_gradients(list(named.values()), whole=True), strict=True))
        members = {key: [name for name in every if name in grads] for key, every in plan.members.items()}
        members = {key: chosen for key, chosen in members.items() if chosen}
        rows = {key: _rows(plan.members[key], chosen, grads[chosen[0]]) for key, chosen in members.items()}
        rest = {name: named[name] for name in plan.rest if name in grads}
        turned = [self._absorb(number, key, [grads[n] for n in chosen], rows[key]) for key, chosen in members.items()]
        turned += [grads[name] for name in rest]
        counts = self._counts(number, list(members.values()), list(rest))
        adam = self._adam(number, turned, rows, list(rest.values()), counts)
        direction = dict(zip(rest, adam[len(members) :], strict=True))
        for (key, chosen), stack in zip(members.items(), adam, strict=False):
            direction |= zip(chosen, self._turn(number, key, stack, rows[key], back=True).unbind(), strict=True)
        return direction

    def _adam(
        self, number: int, turned: list[Tensor], rows: dict[str, Index], rest: list[Tensor], counts: list[Tensor]
    ) -> list[Tensor]:
        """Adam's directions m̂ / (√v̂ + ε), of each stack, then of each of the rest; updates the moments.

        Args:
            number: of the group.
            turned: gradients of the stacks in the coordinates of their bases, then of the rest.
            rows: which rows of each stack these are.
            rest: parameters without a basis.
            counts: as `_counts` returns them.
        """
        group, state = self.param_groups[number], self.state[_place(number)]
        first, second = (
            [state[moment][key][chosen] for key, chosen in rows.items()]
            + [self.state[parameter][moment] for parameter in rest]
            for moment in ("first", "second")
        )
        torch._foreach_lerp_(first, turned, 1.0 - group["beta1"])
        torch._foreach_mul_(second, group["beta2"])
        torch._foreach_addcmul_(second, turned, turned, 1.0 - group["beta2"])
        for moment, values in ("first", first), ("second", second):
            for (key, chosen), value in zip(rows.items(), values, strict=False):
                if not isinstance(chosen, slice):  # a slice is a view of the state
                    state[moment][key][chosen] = value
        scale: Any = torch._foreach_sqrt(second)
        _multiply(scale, [1.0 / (1.0 - group["beta2"] ** count).sqrt() for count in counts])
        torch._foreach_add_(scale, group["epsilon"])
        _multiply(scale, [1.0 - group["beta1"] ** count for count in counts])
        return list(torch._foreach_div(first, scale))

    def _counts(self, number: int, stacks: list[list[str]], rest: list[str]) -> list[Tensor]:
        """How many gradients the averages hold: of each stack, then of each of the rest; one count if all are equal.

        Only the steps that a parameter missed are counted for it, in its state.
        """
        params, steps = self.param_groups[number]["params"], self.state[_place(number)]["steps"]
        missed = {self.names[parameter]: self.state[parameter].get("missed", 0) for parameter in params}
        for parameter in params:
            if parameter.grad is None:
                self.state[parameter]["missed"] = missed[self.names[parameter]] + 1
        if not any(missed.values()):
            return [steps]
        counts = [(steps - place_numbers([missed[name] for name in stack], steps)).view(-1, 1, 1) for stack in stacks]
        return counts + [steps - missed[name] for name in rest]

    def _absorb(self, number: int, key: str, grads: list[Tensor], rows: Index) -> Tensor:
        """Add the gradients of one stack to its statistics; returns them in the coordinates of their bases."""
        factors, beta2 = self.state[_place(number)]["factor"], self.param_groups[number]["beta2"]
        height, width = map(int, key.split("x"))
        stack = torch.stack([grad.reshape(height, width) for grad in grads])
        for side, one, other in ("left", stack, stack.mT), ("right", stack.mT, stack):
            if (factor := factors.get(f"{key}/{side}")) is None:
                continue
            if isinstance(rows, slice):
                factor.baddbmm_(one, other, beta=beta2, alpha=1.0 - beta2)
            else:
                factor[rows] = torch.baddbmm(factor[rows], one, other, beta=beta2, alpha=1.0 - beta2)
        return self._turn(number, key, stack, rows)

    def _turn(self, number: int, key: str, stack: Tensor, rows: Index, *, back: bool = False) -> Tensor:
        """Matrices in the coordinates of their bases, Q_Lᵀ X Q_R, or `back` from there."""
        bases = self.state[_place(number)]["basis"]
        sides = (f"{key}/left", f"{key}/right")
        left, right = (bases[side][rows] if side in bases else None for side in sides)
        if left is not None:
            stack = (left if back else left.mT) @ stack
        if right is not None:
            stack = stack @ (right.mT if back else right)
        return stack


def _place(group: int) -> str:
    """Return the key of a group's statistics in the state."""
    return f"soap/{group}" if group else "soap"


def _rows(every: list[str], chosen: list[str], like: Tensor) -> Index:
    """Return the rows of a stack that belong to some of its members."""
    return slice(None) if chosen == every else place_numbers([every.index(name) for name in chosen], like, torch.int64)


def _multiply(values: list[Tensor], factors: list[Tensor]) -> None:
    """Multiply all values by one factor, or each by its own; the factors are in float64."""
    rounded = [factor.to(values[0].dtype) for factor in factors]
    torch._foreach_mul_(values, rounded if len(rounded) > 1 or rounded[0].ndim else rounded[0])


def refresh_basis(factor: Tensor, basis: Tensor, *, start: bool) -> Tensor:
    """Bases of eigenvectors (count, n, n), not finite where there is none.

    Args:
        factor: statistics (count, n, n).
        basis: the previous bases (count, n, n), from which one power iteration starts.
        start: decompose the statistics instead of iterating.
    """
    size, limits = factor.shape[-1], torch.finfo(factor.dtype)
    mean = factor.diagonal(dim1=-2, dim2=-1).mean(-1)
    usable = (factor.isfinite().all(-1).all(-1) & (mean >= limits.tiny))[:, None, None]
    safe = torch.where(usable, factor, torch.eye(size, dtype=factor.dtype, device=factor.device))
    if start:
        try:
            columns = torch.linalg.eigh(safe)[1].contiguous()
        except torch.linalg.LinAlgError:  # one matrix that does not converge fails the whole call
            return torch.full_like(factor, torch.nan)
    else:
        power = safe @ basis
        estimate = (basis * power).sum(-2, keepdim=True)
        power = power + size * limits.eps * estimate.amax(-1, keepdim=True) * basis
        order = estimate.argsort(dim=-1, descending=True, stable=True)
        columns = torch.linalg.qr(power.take_along_dim(order, -1))[0]
        columns = columns.take_along_dim(order.argsort(-1), -1)  # in their old places
    return torch.where(usable, columns, torch.nan)


make = SOAP
