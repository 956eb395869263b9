"""K-BFGS in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer
from suite.optimizers._base.torch import decayed
from suite.optimizers.kbfgs.plan import CURVATURE, POWELL, KBFGSPlan

Tree = dict[str, Tensor]
Taps = Mapping[tuple[str, int], tuple[Tensor, Tensor]]


class KBFGS(torch.optim.Optimizer):
    """Kronecker-factored BFGS; the rule stands in the package's docstring.

    Pass what `observe` makes of a step's taps, divided by the summed weight, to `absorb`, then call `program` for each
    of `plan.programs(step)`, then `step`. `state["kbfgs"]["kept"]` counts the pairs that could not be used.

    Args:
        parameters: `model.named_parameters()`.
        layers: the model's layers, by module name; the linear ones are covered.
        lr: learning rate η.
        momentum: μ of the averaged gradient.
        damping: λ; its root is added to A and bounds the curvature of the pairs (s, y).
        factor_decay: β of A.
        pair_decay: β of s and y.
        weight_decay: L2 term, added to the gradients of matrices and filters.
        warm_start: batches whose A is averaged before the first step.
    """

    state: dict[Any, Any]  # under the key "kbfgs": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        lr: float = 0.3,
        momentum: float = 0.9,
        damping: float = 0.3,
        factor_decay: float = 0.9,
        pair_decay: float = 0.9,
        weight_decay: float = 0.0,
        warm_start: int = 0,
    ):
        values = {"lr": lr, "momentum": momentum, "damping": damping, "factor_decay": factor_decay}
        super().__init__(parameters, values | {"pair_decay": pair_decay, "weight_decay": weight_decay})
        pairs = [zip(group["param_names"], group["params"], strict=True) for group in self.param_groups]
        self.named: Tree = {name: parameter for group in pairs for name, parameter in group}
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        self.plan = plan = KBFGSPlan(layers, shapes, warm_start=warm_start)
        like = next(iter(self.named.values())).detach()
        self.state["kbfgs"] = {
            "a": {name: like.new_zeros(size, size) for name, size in plan.inputs.items()},
            "ha": {name: torch.eye(size).to(like) for name, size in plan.inputs.items()},
            "hg": {name: torch.eye(size).to(like) for name, size in plan.outputs.items()},
            "middle": {name: like.new_zeros(size) for name, size in plan.inputs.items()},
            "slope": {name: like.new_zeros(size) for name, size in plan.outputs.items()},
            "s": {name: like.new_zeros(size) for name, size in plan.outputs.items()},
            "y": {name: like.new_zeros(size) for name, size in plan.outputs.items()},
            "mass": like.new_zeros(()),
            "kept": like.new_zeros((), dtype=torch.int64),
        }
        for parameter in self.named.values():
            self.state[parameter]["average"] = torch.zeros_like(parameter)

    def observe(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of a aᵀ, â and ĝ, from the taps of one backward pass; weight is (N,)."""
        sums = self.means(taps, weight)
        for (name, _), (x, _) in taps.items():
            if name in self.plan.inputs:
                key, value = f"{name}/factor", _factor(x, weight, self.plan.inputs[name])
                sums[key] = sums[key] + value if key in sums else value
        return sums

    def means(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of â and ĝ: all that the second pass is asked for."""
        sums: Tree = {}
        for (name, _), (x, dy) in taps.items():
            if name in self.plan.inputs:
                for key, value in _means(x, dy, weight, self.plan.inputs[name]).items():
                    sums[name + key] = sums[name + key] + value if name + key in sums else value
        return sums

    def prepare(self, statistics: Tree, *, reduce: Any) -> None:
        """Begin with these statistics of `plan.warm_start` batches."""
        state, names = self.state["kbfgs"], self.plan.linear
        for name, value in reduce.mean("factors", {n: statistics[f"{n}/factor"] for n in names}).items():
            state["a"][name].copy_(value)
        state["mass"].fill_(1.0)

    def absorb(self, statistics: Tree, *, reduce: Any) -> None:
        """Average the statistics over ranks; A takes them in."""
        state, names, decay = self.state["kbfgs"], self.plan.linear, self.param_groups[0]["factor_decay"]
        for name, value in reduce.mean("factors", {n: statistics[f"{n}/factor"] for n in names}).items():
            state["a"][name].lerp_(value, 1.0 - decay)
        means = reduce.exact({key: value for key, value in statistics.items() if not key.endswith("/factor")})
        for name in names:
            state["middle"][name].copy_(means[f"{name}/middle"])
            state["slope"][name].copy_(means[f"{name}/slope"])
        state["mass"].mul_(decay).add_(1.0 - decay)

    def _damped(self, name: str) -> Tensor:
        """A + √λ I."""
        state = self.state["kbfgs"]
        factor = state["a"][name] / state["mass"]
        factor.diagonal().add_(self.param_groups[0]["damping"] ** 0.5)
        return factor

    def program(self, name: str, *, reduce: Any) -> None:
        """Ha of one layer from its A; every rank does the same."""
        root, failed = torch.linalg.cholesky_ex(self._damped(name))
        inverse = torch.cholesky_inverse(root)
        usable = (failed == 0) & inverse.isfinite().all()
        state = self.state["kbfgs"]
        state["ha"][name].copy_(torch.where(usable, inverse, state["ha"][name]))
        state["kept"] += ~usable

    def facts(self) -> dict[str, float]:
        """How often a matrix stayed as it was, for the result."""
        return {"kept": int(self.state["kbfgs"]["kept"])}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, evaluate: Any, reduce: Any) -> None:
        """Update the parameters from their gradients, look at the batch again, and let the inverses follow."""
        state, linear, directions = self.state["kbfgs"], self.plan.linear, {}
        for group in self.param_groups:
            found = [parameter.grad for parameter in group["params"]]
            average = [self.state[parameter]["average"] for parameter in group["params"]]
            torch._foreach_lerp_(
                average, decayed(found, group["params"], group["weight_decay"]), 1.0 - group["momentum"]
            )
            directions |= zip(group["param_names"], average, strict=True)
        before = {name: self._whole(name, self.named) @ state["middle"][name] for name in linear}
        for name in linear:
            whole = state["hg"][name] @ self._whole(name, directions) @ state["ha"][name]
            weight, *bias = self.plan.layers[name].parameters
            directions[weight] = whole[:, : self.named[weight][0].numel()].reshape(self.named[weight].shape)
            directions |= {b: whole[:, -1] for b in bias}
        for group in self.param_groups:
            chosen = [directions[name] for name in group["param_names"]]
            torch._foreach_add_(group["params"], chosen, alpha=-group["lr"])
        if linear:
            after = reduce.exact(evaluate(observe=self.means)[2])
            for name in linear:
                self._follow(name, before[name], after[f"{name}/middle"], after[f"{name}/slope"])

    def _whole(self, name: str, values: Tree) -> Tensor:
        """Weight and bias of a layer side by side, or what belongs to them."""
        weight, *bias = self.plan.layers[name].parameters
        return torch.cat([values[weight].flatten(1), *(values[b][:, None] for b in bias)], 1)

    def _follow(self, name: str, before: Tensor, middle: Tensor, slope: Tensor) -> None:
        """Hg and Ha of one layer after the step, from the outputs before it and the means after it."""
        state, at = self.state["kbfgs"], self.param_groups[0]
        rest = 1.0 - at["pair_decay"]
        s = state["s"][name].lerp_(before - self._whole(name, self.named) @ middle, rest)
        y = state["y"][name].lerp_(state["slope"][name] - slope, rest)
        hg, ha, a = state["hg"][name], state["ha"][name], state["middle"][name]
        acted = ha @ a
        used = [
            _bfgs(hg, *_double_damping(hg, s, y, at["damping"] ** 0.5), state["slope"][name]),
            _bfgs(ha, acted, self._damped(name) @ acted, a),
        ]
        state["kept"] += (~torch.stack(used)).sum()


def _means(x: Tensor, dy: Tensor, weight: Tensor, size: int) -> Tree:
    """Of one call of a layer, Σ â (size,) and Σ ĝ (out,); dy holds the samples' weights already."""
    middle = weight @ x.reshape(len(x), -1, x.shape[-1]).mean(1)
    if size > x.shape[-1]:
        middle = torch.cat([middle, weight.sum()[None]])
    return {"/middle": middle, "/slope": dy.reshape(len(dy), -1, dy.shape[-1]).mean(1).sum(0)}


def _factor(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Of one call of a layer, Σ a aᵀ (size, size)."""
    flat = x.reshape(len(x), -1, x.shape[-1]) * weight.sqrt()[:, None, None]
    if size > x.shape[-1]:
        ones = weight.sqrt()[:, None, None].expand(*flat.shape[:2], 1)
        flat = torch.cat([flat, ones], 2)
    rows = flat.flatten(0, 1)
    return rows.T @ rows


def _double_damping(h: Tensor, s: Tensor, y: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The pair, s and y moved towards Hy and s so far that sᵀy ≥ μ₁ yᵀHy and sᵀy ≥ √λ sᵀs."""
    hy = h @ y
    sy, yhy = s @ y, y @ hy
    theta = torch.where(sy < POWELL * yhy, (1.0 - POWELL) * yhy / (yhy - sy), 1.0)
    s = theta * s + (1.0 - theta) * hy
    sy, ss = s @ y, s @ s
    theta = torch.where(sy < ridge * ss, (1.0 - ridge) * ss / (ss - sy), 1.0)
    return s, theta * y + (1.0 - theta) * s


def _bfgs(h: Tensor, s: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """BFGS of an inverse, in place; whether the pair was used."""
    curvature = s @ y
    usable = curvature > CURVATURE * (s @ s) * slope.norm()
    rho = 1.0 / torch.where(usable, curvature, 1.0)
    hy = h @ y
    new = h + torch.outer(s, (rho**2 * (y @ hy) + rho) * s - rho * hy) - torch.outer(rho * hy, s)
    usable &= new.isfinite().all()
    h.copy_(torch.where(usable, new, h))
    return usable


make = KBFGS
