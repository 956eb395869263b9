"""K-BFGS in torch."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer, Reduce, UserError
from suite.declared import describe_settings, take_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.torch import (
    add_weight_decay,
    densify_gradients,
    edit_weights,
    make_zero_state,
    select_with_gradient,
    turn_weights,
    widen_type,
)
from suite.optimizers._base.torch_observing import Observing
from suite.optimizers._base.torch_shards import gather_whole
from suite.optimizers._plan import turn_shapes
from suite.optimizers.kbfgs import Settings
from suite.optimizers.kbfgs.plan import KBFGSPlan
from suite.optimizers.kbfgs.torch_pairs import apply_bfgs, double_damping, multiply_vectors
from suite.optimizers.kbfgs.torch_statistics import Taps, sum_means, sum_statistics

Tree = dict[str, Tensor]
SHARED = ("damping", "factor_decay", "pair_decay")  # settings of all groups together


@describe_settings(Settings)
class KBFGS(Observing[Settings]):
    """Kronecker-factored BFGS; the package's docstring describes the rule.

    Looks at each batch twice: call `step` with a closure that runs forward and backward inside
    `suite.engine.torch_alone.observed`. The suite's engine passes what `observe` makes of a step's taps, divided by
    the summed weight, to `absorb` instead, then calls `program` for each of `plan.programs(step)`, and gives `evaluate`
    and `reduce` to `step`. `state["kbfgs"]["kept"]` counts the pairs that could not be used.

    Args:
        parameters: `model.named_parameters()`, or groups of them with an `lr`, `momentum` and `weight_decay` each; all
            else must be the same in all groups.
        layers: the model's layers, by module name; the linear ones are covered.
        shapes: not read.
        lr: learning rate.
        settings: by name, as listed below.

    Raises:
        UserError: for a setting that is unknown or out of range; for parameters without names.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float | None = None,
        *,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        **settings: Any,
    ):
        super().__init__(parameters, take_settings(Settings, lr, settings))
        self.named = self.name_layers(layers)
        self._shared(*SHARED)
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        self.plan = KBFGSPlan(layers, shapes, self.settings)
        self.state["kbfgs"] = self._initial()

    def _initial(self) -> dict[str, Any]:
        """Averages of zero; Ha and Hg of one."""
        plan, first = self.plan, next(iter(self.named.values())).detach()
        like = torch.empty(0, dtype=widen_type(first.dtype), device=first.device)
        count = {key: len(names) for key, names in plan.stacks.items()}
        return {
            "a": {key: like.new_zeros(count[key], size, size) for key, size in plan.inputs.items()},
            "ha": {key: torch.eye(size).to(like).repeat(count[key], 1, 1) for key, size in plan.inputs.items()},
            "hg": {key: torch.eye(size).to(like).repeat(count[key], 1, 1) for key, size in plan.outputs.items()},
            "middle": {key: like.new_zeros(count[key], size) for key, size in plan.inputs.items()},
            "slope": {key: like.new_zeros(count[key], size) for key, size in plan.outputs.items()},
            "s": {key: like.new_zeros(count[key], size) for key, size in plan.outputs.items()},
            "y": {key: like.new_zeros(count[key], size) for key, size in plan.outputs.items()},
            "mass": like.new_zeros(()),
            "prepared": like.new_zeros((), dtype=torch.bool),
            "kept": like.new_zeros((), dtype=torch.int64),
            "steps": 0,
        }

    def _begin(self, group: dict[str, Any]) -> None:
        if "kbfgs" in self.state:
            self._closed()
        for parameter in group["params"]:
            self.state[parameter]["average"] = make_zero_state(parameter, whole=True)

    def observe(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of a aᵀ, â and ĝ, from the taps of one backward pass; weight is (N,)."""
        return sum_statistics(self.plan, taps, weight)

    def means(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of â and ĝ: all that the second pass is asked for."""
        return sum_means(self.plan, taps, weight)

    def _stacked(self, statistics: Tree, kind: str) -> Tree:
        """One kind of statistics, a stack of layers by key; the state's for layers that were not used."""
        state = self.state["kbfgs"]
        old = state["a" if kind == "factor" else kind]
        if kind == "factor":
            old = {key: value / state["mass"].clamp_min(torch.finfo(value.dtype).tiny) for key, value in old.items()}

        def row_of(name: str, key: str, row: int) -> Tensor:
            return statistics[name] if name in statistics else old[key][row]

        return {
            key: torch.stack([row_of(f"{name}/{kind}", key, row) for row, name in enumerate(names)])
            for key, names in self.plan.stacks.items()
        }

    def prepare(self, statistics: Tree, *, reduce: Reduce[Tensor]) -> None:
        """Begin with these statistics of `plan.warm_start` batches."""
        state = self.state["kbfgs"]
        for key, value in reduce.exact(self._stacked(statistics, "factor")).items():
            state["a"][key].copy_(value)
        state["mass"].fill_(1.0)
        state["prepared"].fill_(True)

    def absorb(self, statistics: Tree, *, reduce: Reduce[Tensor]) -> None:
        """Average the statistics over ranks; A takes them in, but not in the step after `prepare`."""
        state, decay = self.state["kbfgs"], self.param_groups[0]["factor_decay"]
        weight = (~state["prepared"]).to(state["mass"].dtype) * (1.0 - decay)
        for key, value in reduce.mean("factors", self._stacked(statistics, "factor")).items():
            state["a"][key].lerp_(value, weight)
        state["prepared"].fill_(False)
        means = reduce.exact({name: value for name, value in statistics.items() if not name.endswith("/factor")})
        for kind in ("middle", "slope"):
            for key, value in self._stacked(means, kind).items():
                state[kind][key].copy_(value)
        state["mass"].mul_(decay).add_(1.0 - decay)

    def _damped(self, key: str) -> Tensor:
        """A + √λ I of a stack."""
        state = self.state["kbfgs"]
        factor = state["a"][key] / state["mass"]
        factor.diagonal(dim1=1, dim2=2).add_(self.param_groups[0]["damping"] ** 0.5)
        return factor

    def program(self, name: str, *, reduce: Reduce[Tensor]) -> None:
        """Ha from A for all layers with so many inputs; every rank does the same."""
        state = self.state["kbfgs"]
        for key in self.plan.equal[name]:
            root, failed = torch.linalg.cholesky_ex(self._damped(key))
            inverse = torch.cholesky_inverse(root)
            usable = (failed == 0) & inverse.isfinite().all(-1).all(-1)
            state["ha"][key].copy_(torch.where(usable[:, None, None], inverse, state["ha"][key]))
            state["kept"] += (~usable).sum()

    def facts(self) -> dict[str, float]:
        """Number of matrices that stayed as they were because their pair was not usable."""
        return {"kept": int(self.state["kbfgs"]["kept"])}

    def _step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        evaluate: Callable[..., Any] | None = None,
        reduce: Reduce[Tensor] | None = None,
    ) -> Any:
        """Update the parameters from their gradients, look at the batch again, and let the inverses follow.

        Args:
            closure: computes the loss and its gradients anew, inside `observed`; called before and after the update.
            evaluate: the second look, given by the suite's engine alone.
            reduce: given by the suite's engine alone.

        Returns:
            What the closure first returned.

        Raises:
            UserError: without a closure, or where its layers were not observed.
        """
        if reduce is None:
            return self._alone(closure)
        with self._updating():
            self._update(evaluate=evaluate, reduce=reduce)

    def _alone(self, closure: Callable[[], Any] | None) -> Any:
        """A step without an engine; returns what the closure first returned.

        Raises:
            UserError: without a closure, for a warm start, or where the layers were not observed.
        """
        if closure is None:
            raise UserError(
                "KBFGS looks at each batch twice; call optimizer.step(closure), with a closure that zeroes gradients, "
                "runs forward and backward inside 'with observed(model, optimizer):' (from suite.engine.torch_alone "
                "import observed), and returns the loss"
            )
        if self.plan.warm_start:
            raise UserError(
                f"KBFGS(warm_start={self.plan.warm_start}): takes further passes, which only the suite's engine makes; "
                "leave it out"
            )
        with torch.enable_grad():
            loss = closure()

        def again(observe: Any) -> tuple[Any, Tree, Tree]:
            with torch.enable_grad():
                return closure(), {}, self.seen()

        with self._updating():
            self.absorb(self.seen(), reduce=ALONE)
            for name in self.plan.programs(self.state["kbfgs"]["steps"]):
                self.program(name, reduce=ALONE)
            self._update(evaluate=again, reduce=ALONE)
        return loss

    def _update(self, *, evaluate: Any, reduce: Reduce[Tensor]) -> None:
        state, stacks = self.state["kbfgs"], self.plan.stacks
        names = {parameter: name for name, parameter in self.named.items()}
        self._shared(*SHARED)
        directions = self._averages(names)
        idle = {key: self._idle(members) for key, members in stacks.items()}
        before = {key: multiply_vectors(self._whole(key, self.named), state["middle"][key]) for key in stacks}
        self._precondition(directions)
        for group in self.param_groups:
            if params := select_with_gradient(group["params"]):
                with edit_weights(params, whole=True) as values:
                    chosen = [directions[names[parameter]] for parameter in params]
                    torch._foreach_add_(values, chosen, alpha=-group["lr"])
        if stacks:
            after = reduce.exact(evaluate(observe=self.means)[2])
            middle, slope = self._stacked(after, "middle"), self._stacked(after, "slope")
            for key in stacks:
                self._follow(key, before[key], middle[key], slope[key], idle[key])
        state["steps"] += 1

    def _averages(self, names: Mapping[Tensor, str]) -> Tree:
        """Every parameter's averaged gradient, which takes in the gradient if there is one."""
        averages: Tree = {}
        for group in self.param_groups:
            averages |= {names[p]: self.state[p]["average"] for p in group["params"]}
            if params := select_with_gradient(group["params"]):
                average = [self.state[parameter]["average"] for parameter in params]
                grads = add_weight_decay(densify_gradients(params, whole=True), params, group["weight_decay"])
                torch._foreach_lerp_(average, grads, 1.0 - group["momentum"])
        return averages

    def _precondition(self, directions: Tree) -> None:
        """Put Hg m Ha in the place of the averages m of covered layers."""
        state = self.state["kbfgs"]
        turned: Tree = {}
        for key, members in self.plan.stacks.items():
            stack = state["hg"][key] @ self._whole(key, directions) @ state["ha"][key]
            for row, name in enumerate(members):
                weight, *bias = self.plan.layers[name].parameters
                shape = turn_shapes(self.plan.layers, {weight: tuple(self.named[weight].shape)})[weight]
                turned[weight] = stack[row, :, : math.prod(shape[1:])].reshape(shape)
                turned |= {b: stack[row, :, -1] for b in bias}
        directions.update(turn_weights(self.plan.layers, turned))

    def _idle(self, members: list[str]) -> list[int]:
        """Return the rows of a stack's layers none of whose parameters has a gradient."""
        parameters = [[self.named[p] for p in self.plan.layers[name].parameters] for name in members]
        return [row for row, tensors in enumerate(parameters) if not select_with_gradient(tensors)]

    def _whole(self, key: str, values: Tree) -> Tensor:
        """Weights and biases of a stack side by side, or what belongs to them: (count, out, in)."""
        wholes = []
        for name in self.plan.stacks[key]:
            weight, *bias = self.plan.layers[name].parameters
            matrix, *vectors = (gather_whole(values[parameter]) for parameter in (weight, *bias))
            matrix = matrix.T if self.plan.layers[name].transposed else matrix
            parts = [matrix.flatten(1), *(vector[:, None] for vector in vectors)]
            wholes.append(torch.cat([part.to(widen_type(part.dtype)) for part in parts], 1))
        return torch.stack(wholes)

    def _follow(self, key: str, before: Tensor, middle: Tensor, slope: Tensor, idle: list[int]) -> None:
        """Update Hg and Ha of a stack after the step.

        Args:
            key: of the stack.
            before: the layers' mean outputs before the step, (count, out).
            middle: their mean inputs after it, (count, in).
            slope: their mean output gradients after it, (count, out).
            idle: rows of layers without gradient, which stay as they are.
        """
        state, group = self.state["kbfgs"], self.param_groups[0]
        kept = {part: state[part][key][idle] for part in ("s", "y", "hg", "ha") if idle}
        rest = 1.0 - group["pair_decay"]
        s = state["s"][key].lerp_(before - multiply_vectors(self._whole(key, self.named), middle), rest)
        y = state["y"][key].lerp_(state["slope"][key] - slope, rest)
        hg, ha, a = state["hg"][key], state["ha"][key], state["middle"][key]
        acted = multiply_vectors(ha, a)
        used = [
            apply_bfgs(hg, *double_damping(hg, s, y, group["damping"] ** 0.5), state["slope"][key]),
            apply_bfgs(ha, acted, multiply_vectors(self._damped(key), acted), a),
        ]
        for part, value in kept.items():
            state[part][key][idle] = value
        state["kept"] += (~torch.stack(used)).sum()


make = KBFGS
