"""Exact quadratic model of K-FAC's step, in torch; reference.py has the formulas."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.contract import Layer
from suite.optimizers.kfac.plan import ADAPTATION, KFACPlan

Tree = dict[str, Tensor]
Taps = Mapping[tuple[str, int], tuple[Tensor, Tensor]]


class Products:
    """Sums over samples of ⟨gᵢ, v⟩ and their products, gᵢ the gradient of a sample's own loss, for directions v.

    The engine calls `observe` layer by layer. A sample's ⟨gᵢ, v⟩ is complete when its micro-batch ends.

    Args:
        plan: its layers.
        directions: by parameter.
    """

    def __init__(self, plan: KFACPlan, directions: Sequence[Tree]):
        self.plan, self.directions = plan, directions
        self.weight: Tensor | None = None
        self.rows: list[Tensor] = []  # of this micro-batch, a layer each: (directions, samples)
        self.complete: list[tuple[Tensor, Tensor]] = []

    def observe(self, taps: Taps, weight: Tensor) -> Tree:
        """Add one layer's taps of a micro-batch; the engine sums the samples' weight, once in each micro-batch."""
        sums: Tree = {}
        if weight is not self.weight:
            self._end()
            self.weight, sums = weight, {"share": weight.sum()}
        for (name, _), (x, dy) in taps.items():
            if layer := self.plan.layers.get(name):
                own = [[v[parameter] for parameter in layer.parameters] for v in self.directions]
                self.rows.append(torch.stack([multiply_gradients(layer, x, dy, *matrices) for matrices in own]))
        return sums

    def _end(self) -> None:
        if self.weight is not None and self.rows:
            rows, weight = torch.stack(self.rows).sum(0), self.weight
            inverse = torch.where(weight > 0, weight.reciprocal(), 0.0)  # dy holds the weight once
            self.complete.append((rows * inverse @ rows.T, weight.sum()))
        self.rows = []

    def collect_sums(self) -> Tree:
        """`gram`, Σ ⟨gᵢ, v⟩ ⟨gᵢ, u⟩ (directions, directions), and `samples`, their weight."""
        self._end()
        gram, samples = zip(*self.complete, strict=True)
        return {"gram": torch.stack(gram).sum(0), "samples": torch.stack(samples).sum()}


def multiply_gradients(layer: Layer, x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each sample's ⟨∇W̃, V⟩ (N,): dy times what the layer makes of its input with V as its weights."""
    if layer.kind == "embedding":
        y = weight[x]
    elif layer.kind == "batchnorm":
        channels = -1, *[1] * (x.ndim - 2)
        y = x * weight.view(channels)
        y = y if bias is None else y + bias.view(channels)
    elif layer.kind == "conv2d":
        y = F.conv2d(x.to(weight.dtype), weight, bias, layer.stride, layer.padding)
    else:
        y = F.linear(x.to(weight.dtype), weight, bias)
    return (y * dy).flatten(1).sum(1)


def fit_step(model: Tensor, slopes: Tensor) -> Tensor:
    """Return the (α, μ) that minimise ½ (α, μ) B (α, μ)ᵀ - (α, μ) · slopes.

    Args:
        model: (2, 2), B for the direction and the last step.
        slopes: (2,), ⟨∇h, v⟩ of both.
    """
    (a, b, _, c), (one, other) = model.flatten().unbind(), slopes.unbind()
    tiny, determinant = torch.finfo(model.dtype), a * c - b * b
    both = determinant > tiny.eps * a * c  # not before the first step
    determinant = torch.where(both, determinant, 1.0)
    length = torch.where(both, (c * one - b * other) / determinant, one / a.clamp_min(tiny.tiny))
    return torch.stack([length, torch.where(both, (a * other - b * one) / determinant, 0.0)])


def adapt_damping(damping: Tensor, fell: Tensor, promised: Tensor) -> Tensor:
    """Return λ times ωᵀ where the loss fell by more than 3/4 of what the model promised, λ / ωᵀ below 1/4."""
    ratio = fell / promised
    return torch.where(ratio > 0.75, damping * ADAPTATION, torch.where(ratio >= 0.25, damping, damping / ADAPTATION))
