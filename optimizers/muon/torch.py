"""Muon in torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer
from suite.declared import describe_settings, take_settings
from suite.optimizers._base.torch import (
    NARROW,
    Optimizer,
    by_name,
    by_updates,
    densify_gradients,
    edit_weights,
    ensure_step_counter,
    make_zero_state,
    place_numbers,
    record_missed_updates,
    turn_weights,
)
from suite.optimizers._base.torch_shards import gather_whole, split_like
from suite.optimizers._linalg.torch import compute_norms
from suite.optimizers._plan import copy_layers, read_layers
from suite.optimizers._rules.torch import step_by_adamw
from suite.optimizers.muon import Settings
from suite.optimizers.muon.plan import COEFFICIENTS, NORM, WIDE, MuonPlan

Tree = dict[str, Tensor]


FIXED = ("nesterov", "iterations", "bfloat16")  # settings of a group that a schedule may not change


@describe_settings(Settings)
class Muon(Optimizer[Settings]):
    """Momentum with singular values close to one, and AdamW for the rest; the rule is in the package's docstring.

    Args:
        parameters: `model.named_parameters()`, or groups of them.
        layers: the model's layers, by module name.
        shapes: not read.
        lr: learning rate.
        settings: by name, as listed below.
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
        self.layers = copy_layers(layers)
        super().__init__(parameters, take_settings(Settings, lr, settings), FIXED)
        own = by_name(self)
        present = {name: layer for name, layer in layers.items() if not own.keys().isdisjoint(layer.parameters)}
        read_layers(present or layers, own)  # others may come with groups that are added later

    def _begin(self, group: dict[str, Any]) -> None:
        named = by_name(self)
        self.names = {parameter: name for name, parameter in named.items()}
        shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        self.arrangement = MuonPlan(self.layers, shapes, self.settings)
        record_missed_updates(self, "muon", group["params"])
        for parameter in group["params"]:
            orthogonal = self.names[parameter] in self.arrangement.sides
            for moment in ("momentum",) if orthogonal else ("first", "second"):
                self.state[parameter][moment] = make_zero_state(parameter)

    def _update(self) -> None:
        steps = ensure_step_counter(self, "muon").add_(1.0)
        for group in self.param_groups:
            for params, updates in by_updates(self, group["params"], steps):
                with edit_weights(params) as values:
                    self._move(params, values, updates, group)

    def _move(self, params: list[Tensor], values: list[Tensor], steps: Tensor, group: dict[str, Any]) -> None:
        """Update the values of parameters that have been updated equally often."""
        matrices: list[tuple[Tensor, Tensor]] = []  # orthogonalised, with their values
        rest: list[tuple[Tensor, Tensor]] = []
        for parameter, value in zip(params, values, strict=True):
            (matrices if "momentum" in self.state[parameter] else rest).append((parameter, value))
        if matrices:
            if group["weight_decay"]:
                torch._foreach_mul_([value for _, value in matrices], 1.0 - group["lr"] * group["weight_decay"])
            self._orthogonal(matrices, group)
        if rest:
            others, weights = [parameter for parameter, _ in rest], [value for _, value in rest]
            step_by_adamw(self, others, weights, self.read_group(group), steps)

    def _orthogonal(self, pairs: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        """Muon's step for parameters and their values, stack by stack; decay is done before."""
        plan, momentum, params = self.arrangement, group["momentum"], [parameter for parameter, _ in pairs]
        named = {self.names[parameter]: value for parameter, value in pairs}
        grads = densify_gradients(params)
        buffers = [self.state[parameter]["momentum"] for parameter in params]
        torch._foreach_lerp_(buffers, grads, 1.0 - momentum)
        ahead = torch._foreach_lerp(grads, buffers, momentum) if group["nesterov"] else buffers
        flat = {name: gather_whole(value).flatten(1) for name, value in zip(named, ahead, strict=True)}
        flat = turn_weights(self.layers, flat)
        for members in plan.stacks.values():
            names = [name for name in members if name in named]
            if not names:
                continue
            stack = torch.stack([flat[name].mT if plan.tall(name) else flat[name] for name in names])
            steps = newton_schulz(stack, group["iterations"], bfloat16=group["bfloat16"])
            scales = place_numbers([-group["lr"] * plan.factor[name] for name in names], steps)
            steps.mul_(scales[:, None, None])
            done = {name: step.mT if plan.tall(name) else step for name, step in zip(names, steps, strict=True)}
            for name, step in turn_weights(self.layers, done).items():
                named[name].add_(split_like(step.reshape(named[name].shape), named[name]))


def newton_schulz(stack: Tensor, iterations: int, *, bfloat16: bool = False) -> Tensor:
    """Each matrix with its singular values brought close to one.

    For wide matrices, the iteration multiplies Gram matrices only: all factors are polynomials in X Xᵀ and commute. In
    bfloat16 and float16 this would lose the small singular values, so there each iteration multiplies the matrix.

    Args:
        stack: (count, rows, columns), rows ≤ columns.
        iterations: 0 only normalises.
        bfloat16: round the iteration to bfloat16.

    Returns:
        A new tensor of the same shape and type.
    """
    a, b, c = COEFFICIENTS
    kind, (rows, columns) = stack.dtype, stack.shape[-2:]
    x = stack / compute_norms(stack.unbind())[:, None, None].clamp(min=NORM)
    if bfloat16 or kind in NARROW or columns < WIDE * rows or not iterations:
        x = x.bfloat16() if bfloat16 else x
        for _ in range(iterations):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.to(kind)
    product = gram = x @ x.mT
    for iteration in range(iterations):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor @ product if iteration else factor
        if iteration < iterations - 1:
            gram = factor @ (gram @ factor)
    return product @ x


make = Muon
