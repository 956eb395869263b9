"""K-FAC in torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from suite.contract import Layer
from suite.optimizers._base.torch import decayed
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Tensor]


class KFAC(torch.optim.Optimizer):
    """Natural gradient with Kronecker factors; equation numbers stand in reference.py.

    Needs statistics beside the gradient: pass what `observe` makes of a layer's taps, divided by the summed weight,
    to `absorb`, then call `program` for each of `plan.programs(step)`, then `step`.

    Args:
        parameters: `model.named_parameters()`.
        layers: what is preconditioned, by module name.
        world: ranks that share the factors.
        lr: learning rate.
        momentum: of the preconditioned gradient.
        damping: λ, split between the factors by π.
        factor_decay: of the factors' exponential average.
        factor_interval: steps between statistics.
        inverse_interval: steps between inversions.
        weight_decay: L2 term, added before preconditioning, to matrices and filters.
        fisher: `empirical`, or `sampled`: labels drawn from the model, one more pass.
        rescale: keep each weight's norm at √(2 · d_out) (SP-NGD).
    """

    state: dict[Any, Any]  # under the key "kfac": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        lr: float = 0.1,
        momentum: float = 0.9,
        damping: float = 0.1,
        factor_decay: float = 0.95,
        factor_interval: int = 1,
        inverse_interval: int = 1,
        weight_decay: float = 0.0,
        fisher: str = "empirical",
        rescale: bool = False,
    ):
        values = {"lr": lr, "momentum": momentum, "damping": damping, "factor_decay": factor_decay}
        super().__init__(parameters, values | {"weight_decay": weight_decay, "rescale": rescale})
        self.named = {
            n: p for group in self.param_groups for n, p in zip(group["param_names"], group["params"], strict=True)
        }
        self.plan = KFACPlan(
            layers,
            {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            world=world,
            factor_interval=factor_interval,
            inverse_interval=inverse_interval,
            fisher=fisher,
        )
        buckets, like = self.plan.buckets, next(iter(self.named.values())).detach()
        self.state["kfac"] = {
            "owned": {key: like.new_zeros(rows // world, int(key), int(key)) for key, rows in buckets.padded.items()},
            "inverse": {key: torch.eye(int(key)).to(like).repeat(rows, 1, 1) for key, rows in buckets.padded.items()},
            "replicated": {
                name: like.new_zeros(self._replicated(name)) for name in self.plan.batchnorm + self.plan.embedding
            },
            "trace": like.new_zeros(len(self.plan.sides)),
            "mass": like.new_zeros(()),
        }
        for parameter in self.named.values():
            self.state[parameter]["velocity"] = torch.zeros_like(parameter)

    def _replicated(self, name: str) -> tuple[int, ...]:
        rows = self.plan.shapes[self.plan.layers[name].parameters[0]][0]
        return (rows, 3) if self.plan.layers[name].kind == "batchnorm" else (rows,)

    def observe(self, taps: Mapping[tuple[str, int], tuple[Tensor, Tensor]], weight: Tensor) -> Tree:
        """Sums over samples of every factor, from the taps of one backward pass; weight is (N,)."""
        sums: Tree = {}
        root = weight.sqrt()
        inverse_root = torch.where(weight > 0, root.reciprocal(), 0.0)  # dy holds the weight once; its square needs √w
        for (name, _), (x, dy) in taps.items():
            layer = self.plan.layers[name]
            dy = dy * inverse_root.view(-1, *[1] * (dy.ndim - 1))
            for key, value in _factors(layer, x, dy, root, self.plan.shapes[layer.parameters[0]][0]).items():
                sums[name + key] = sums[name + key] + value if name + key in sums else value
        return sums

    def absorb(self, statistics: Tree, *, reduce: Any) -> None:
        """Average the statistics over ranks and mix them into the factors; each rank keeps the slices it owns."""
        state, decay, buckets = self.state["kfac"], self.param_groups[0]["factor_decay"], self.plan.buckets
        rest = {name: statistics[name + ("/in" if name in self.plan.embedding else "")] for name in state["replicated"]}
        traces = [
            value.trace() if value.ndim == 2 else value.sum() for value in map(statistics.__getitem__, self.plan.sides)
        ]
        mixed = reduce.exact(rest | {"trace": torch.stack(traces)}) if traces else reduce.exact(rest)
        for key, members in buckets.members.items():
            stack = torch.stack([statistics[side] for side in members])
            stack = functional.pad(stack, (0, 0, 0, 0, 0, buckets.filler(key)))
            state["owned"][key].lerp_(reduce.to_owners(f"factor/{key}", stack), 1.0 - decay)
        for name, value in mixed.items():
            (state["trace"] if name == "trace" else state["replicated"][name]).lerp_(value, 1.0 - decay)
        state["mass"].mul_(decay).add_(1.0 - decay)

    def _ridges(self) -> Tensor:
        """Damping of each side: √(λ · mean eigenvalue / partner's mean eigenvalue), that is π√λ and √λ/π."""
        state = self.state["kfac"]
        sizes = state["trace"].new_tensor([self.plan.sizes[side] for side in self.plan.sides])
        mean = (state["trace"] / state["mass"] / sizes).clamp_min(1e-12)
        return (self.param_groups[0]["damping"] * mean / mean[self.plan.partner]).sqrt()

    def program(self, name: str, *, reduce: Any) -> None:
        """Invert the owned factors of one bucket and gather every owner's inverses."""
        state, buckets = self.state["kfac"], self.plan.buckets
        ridge = functional.pad(self._ridges()[self.plan.rows(name)], (0, buckets.filler(name)), value=1.0)
        damped = state["owned"][name] / state["mass"]
        damped.diagonal(dim1=1, dim2=2).add_(reduce.mine(ridge)[:, None])
        root, failed = torch.linalg.cholesky_ex(damped)
        inverse = torch.cholesky_inverse(root)
        usable = (failed == 0) & inverse.isfinite().all(-1).all(-1)
        inverse = torch.where(usable[:, None, None], inverse, reduce.mine(state["inverse"][name]))
        # row-major, so that a restored state has the same strides and the same bits follow
        state["inverse"][name] = reduce.gather(f"inverse/{name}", inverse.contiguous())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            found = [parameter.grad for parameter in group["params"]]
            grads = dict(zip(group["param_names"], decayed(found, group["params"], group["weight_decay"]), strict=True))
            direction = list(self._precondition(grads).values())
            velocity = [self.state[parameter]["velocity"] for parameter in group["params"]]
            torch._foreach_mul_(velocity, group["momentum"])
            torch._foreach_add_(velocity, direction)
            torch._foreach_add_(group["params"], velocity, alpha=-group["lr"])
            if group["rescale"]:
                for name in self.plan.kronecker:
                    weight = self.named[self.plan.layers[name].parameters[0]]
                    weight.mul_((2.0 * len(weight)) ** 0.5 / (weight.norm() + 1e-9))

    def _inverse(self, side: str) -> Tensor:
        key, row = self.plan.buckets.place[side]
        return self.state["kfac"]["inverse"][key][row]

    def _precondition(self, grads: Tree) -> Tree:
        """G⁻¹ ∇W A⁻¹ for every covered layer; other gradients pass."""
        state, plan, done = self.state["kfac"], self.plan, dict(grads)
        for name in plan.kronecker:
            weight, *bias = plan.layers[name].parameters
            columns = [grads[weight].flatten(1), *(grads[b][:, None] for b in bias)]
            full = self._inverse(f"{name}/out") @ torch.cat(columns, 1) @ self._inverse(f"{name}/in")
            done[weight] = full[:, : columns[0].shape[1]].reshape(grads[weight].shape)
            done.update({b: full[:, -1] for b in bias})
        for name in plan.embedding:
            weight = plan.layers[name].parameters[0]
            diagonal = state["replicated"][name] / state["mass"] + self._ridges()[plan.sides.index(f"{name}/in")]
            done[weight] = grads[weight] / diagonal[:, None] @ self._inverse(f"{name}/out")
        damping = self.param_groups[0]["damping"]
        for name in plan.batchnorm:
            weight, bias = plan.layers[name].parameters
            a, b, c = (state["replicated"][name] / state["mass"]).unbind(1)  # [[a, b], [b, c]] for each channel
            a, c = a + damping, c + damping
            determinant = a * c - b * b
            done[weight] = (c * grads[weight] - b * grads[bias]) / determinant
            done[bias] = (a * grads[bias] - b * grads[weight]) / determinant
        return done


def _factors(layer: Layer, x: Tensor, dy: Tensor, root: Tensor, rows: int) -> Tree:
    """One layer's sums over samples; dy already divided by √weight, `root` is √weight (N,)."""
    if layer.kind == "batchnorm":
        scale, shift = (dy * x).flatten(2).sum(2), dy.flatten(2).sum(2)  # (N, C) each
        return {"": torch.stack([(scale * scale).sum(0), (scale * shift).sum(0), (shift * shift).sum(0)], 1)}
    if layer.kind == "conv2d":
        places = dy.shape[2] * dy.shape[3]
        g = dy.transpose(0, 1).flatten(1).T  # (N · places, out)
        x = x * root[:, None, None, None]
        if layer.kernel == 1:
            a = x[:, :, :: layer.stride, :: layer.stride].transpose(0, 1).flatten(1)
        else:
            patches = functional.unfold(x, layer.kernel, padding=layer.padding, stride=layer.stride)
            a = patches.transpose(0, 1).flatten(1)  # (in · k², N · places)
        if len(layer.parameters) > 1:
            a = torch.cat([a, root.repeat_interleave(places)[None]])
        return {"/in": a @ a.T, "/out": g.T @ g / places}
    places = dy[0, ..., 0].numel()
    g = dy.reshape(-1, dy.shape[-1])
    out = {"/out": g.T @ g / places}
    if layer.kind == "embedding":
        weights = (root * root).repeat_interleave(places)
        return out | {"/in": dy.new_zeros(rows).index_add_(0, x.reshape(-1), weights)}
    a = x * root.view(-1, *[1] * (x.ndim - 1))
    if len(layer.parameters) > 1:
        a = torch.cat([a, root.view(-1, *[1] * (x.ndim - 1)).expand(*x.shape[:-1], 1)], -1)
    a = a.reshape(-1, a.shape[-1])
    return out | {"/in": a.T @ a}


make = KFAC
