"""K-BFGS in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer
from suite.optimizers._base.torch import by_name, decayed
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
        self.named = by_name(self)
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        self.plan = plan = KBFGSPlan(layers, shapes, warm_start=warm_start)
        like = next(iter(self.named.values())).detach()
        count = {key: len(names) for key, names in plan.stacks.items()}
        self.state["kbfgs"] = {
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
        }
        for parameter in self.named.values():
            self.state[parameter]["average"] = torch.zeros_like(parameter)

    def observe(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of a aᵀ, â and ĝ, from the taps of one backward pass; weight is (N,)."""
        sums = self.means(taps, weight)
        for name, (x, _) in self._positions(taps).items():
            sums[f"{name}/factor"] = _factor(x, weight, self.plan.inputs[self.plan.place[name]])
        return sums

    def means(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of â and ĝ: all that the second pass is asked for."""
        sums: Tree = {}
        for name, (x, dy) in self._positions(taps).items():
            found = _means(x, dy, weight, self.plan.inputs[self.plan.place[name]])
            sums |= {name + end: value for end, value in found.items()}
        return sums

    def _positions(self, taps: Taps) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each covered layer x (N, T, in) and dy (N, T, out), the positions of its calls one after another."""
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for (name, _), pair in taps.items():
            if name in self.plan.place:
                x, dy = (value.reshape(len(value), -1, value.shape[-1]) for value in pair)
                calls.setdefault(name, []).append((x, dy))
        joined = {name: zip(*pairs, strict=True) for name, pairs in calls.items()}
        return {name: (_side_by_side(x), _side_by_side(dy)) for name, (x, dy) in joined.items()}

    def _stacked(self, statistics: Tree, kind: str) -> Tree:
        """One kind of statistics, a stack of layers by key."""
        return {
            key: torch.stack([statistics[f"{name}/{kind}"] for name in names])
            for key, names in self.plan.stacks.items()
        }

    def prepare(self, statistics: Tree, *, reduce: Any) -> None:
        """Begin with these statistics of `plan.warm_start` batches."""
        state = self.state["kbfgs"]
        for key, value in reduce.exact(self._stacked(statistics, "factor")).items():
            state["a"][key].copy_(value)
        state["mass"].fill_(1.0)
        state["prepared"].fill_(True)

    def absorb(self, statistics: Tree, *, reduce: Any) -> None:
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

    def program(self, name: str, *, reduce: Any) -> None:
        """Ha from A for all layers with so many inputs; every rank does the same."""
        state = self.state["kbfgs"]
        for key in self.plan.equal[name]:
            root, failed = torch.linalg.cholesky_ex(self._damped(key))
            inverse = torch.cholesky_inverse(root)
            usable = (failed == 0) & inverse.isfinite().all(-1).all(-1)
            state["ha"][key].copy_(torch.where(usable[:, None, None], inverse, state["ha"][key]))
            state["kept"] += (~usable).sum()

    def facts(self) -> dict[str, float]:
        """How often a matrix stayed as it was, for the result."""
        return {"kept": int(self.state["kbfgs"]["kept"])}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, evaluate: Any, reduce: Any) -> None:
        """Update the parameters from their gradients, look at the batch again, and let the inverses follow."""
        state, directions = self.state["kbfgs"], {}
        for group in self.param_groups:
            found = [parameter.grad for parameter in group["params"]]
            average = [self.state[parameter]["average"] for parameter in group["params"]]
            torch._foreach_lerp_(
                average, decayed(found, group["params"], group["weight_decay"]), 1.0 - group["momentum"]
            )
            directions |= zip(group["param_names"], average, strict=True)
        before = {key: _outputs(self._whole(key, self.named), state["middle"][key]) for key in self.plan.stacks}
        for key, names in self.plan.stacks.items():
            found = state["hg"][key] @ self._whole(key, directions) @ state["ha"][key]
            for row, name in enumerate(names):
                weight, *bias = self.plan.layers[name].parameters
                columns = self.named[weight][0].numel()
                directions[weight] = found[row, :, :columns].reshape(self.named[weight].shape)
                directions |= {b: found[row, :, -1] for b in bias}
        for group in self.param_groups:
            chosen = [directions[name] for name in group["param_names"]]
            torch._foreach_add_(group["params"], chosen, alpha=-group["lr"])
        if self.plan.stacks:
            after = reduce.exact(evaluate(observe=self.means)[2])
            middle, slope = self._stacked(after, "middle"), self._stacked(after, "slope")
            for key in self.plan.stacks:
                self._follow(key, before[key], middle[key], slope[key])

    def _whole(self, key: str, values: Tree) -> Tensor:
        """Weights and biases of a stack side by side, or what belongs to them: (count, out, in)."""
        wholes = []
        for name in self.plan.stacks[key]:
            weight, *bias = self.plan.layers[name].parameters
            wholes.append(torch.cat([values[weight].flatten(1), *(values[b][:, None] for b in bias)], 1))
        return torch.stack(wholes)

    def _follow(self, key: str, before: Tensor, middle: Tensor, slope: Tensor) -> None:
        """Hg and Ha of a stack after the step, from the outputs before it and the means after it."""
        state, at = self.state["kbfgs"], self.param_groups[0]
        rest = 1.0 - at["pair_decay"]
        s = state["s"][key].lerp_(before - _outputs(self._whole(key, self.named), middle), rest)
        y = state["y"][key].lerp_(state["slope"][key] - slope, rest)
        hg, ha, a = state["hg"][key], state["ha"][key], state["middle"][key]
        acted = _outputs(ha, a)
        used = [
            _bfgs(hg, *_double_damping(hg, s, y, at["damping"] ** 0.5), state["slope"][key]),
            _bfgs(ha, acted, _outputs(self._damped(key), acted), a),
        ]
        state["kept"] += (~torch.stack(used)).sum()


def _side_by_side(calls: tuple[Tensor, ...]) -> Tensor:
    """The positions (N, T, …) of one call as they are, or those of several."""
    return calls[0] if len(calls) == 1 else torch.cat(calls, 1)


def _means(x: Tensor, dy: Tensor, weight: Tensor, size: int) -> Tree:
    """Σ â (size,) and Σ ĝ (out,) of a layer; dy holds the samples' weights already."""
    middle = weight @ x.mean(1)
    if size > x.shape[-1]:
        middle = torch.cat([middle, weight.sum()[None]])
    return {"/middle": middle, "/slope": dy.mean(1).sum(0)}


def _factor(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Σ a aᵀ (size, size) of a layer."""
    flat = x * weight.sqrt()[:, None, None]
    if size > x.shape[-1]:
        ones = weight.sqrt()[:, None, None].expand(*flat.shape[:2], 1)
        flat = torch.cat([flat, ones], 2)
    rows = flat.flatten(0, 1)
    return rows.T @ rows


def _outputs(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrix-vector products of a stack: (count, m, n) and (count, n) to (count, m)."""
    return (matrix @ vector[:, :, None])[:, :, 0]


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of a stack, (count, 1)."""
    return (one * other).sum(1, keepdim=True)


def _double_damping(h: Tensor, s: Tensor, y: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The pairs (count, n), s and y moved towards Hy and s so far that sᵀy ≥ μ₁ yᵀHy and sᵀy ≥ √λ sᵀs."""
    hy = _outputs(h, y)
    sy, yhy = _dot(s, y), _dot(y, hy)
    theta = torch.where(sy < POWELL * yhy, (1.0 - POWELL) * yhy / (yhy - sy), 1.0)
    s = theta * s + (1.0 - theta) * hy
    sy, ss = _dot(s, y), _dot(s, s)
    theta = torch.where(sy < ridge * ss, (1.0 - ridge) * ss / (ss - sy), 1.0)
    return s, theta * y + (1.0 - theta) * s


def _bfgs(h: Tensor, s: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """BFGS of inverses (count, n, n), in place; which pairs were used (count,)."""
    curvature = _dot(s, y)
    usable = curvature > CURVATURE * _dot(s, s) * slope.norm(dim=1, keepdim=True)
    rho = 1.0 / torch.where(usable, curvature, 1.0)
    hy = _outputs(h, y)
    scaled = (rho**2 * _dot(y, hy) + rho) * s - rho * hy
    new = h + s[:, :, None] * scaled[:, None] - (rho * hy)[:, :, None] * s[:, None]
    usable = usable[:, 0] & new.isfinite().all(-1).all(-1)
    h.copy_(torch.where(usable[:, None, None], new, h))
    return usable


make = KBFGS
