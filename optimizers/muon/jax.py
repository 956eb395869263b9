"""Muon in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.declared import describe_settings
from suite.optimizers._base.jax import NARROW, Optimizer, build_for_shapes, validate_settings
from suite.optimizers._plan import read_layers
from suite.optimizers._rules.jax import step_by_adamw
from suite.optimizers.muon import Settings
from suite.optimizers.muon.plan import COEFFICIENTS, NORM, WIDE, MuonPlan

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def muon(
    *, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]] | None = None, **settings: Any
) -> Optimizer:
    """Momentum with singular values close to one, and AdamW for the rest; the rule is in the package's docstring.

    Args:
        layers: the model's layers, by module name.
        shapes: the parameters' shapes, by name; None: those of the parameters that `init` and `update` receive.
        settings: by name, as listed below.
    """
    chosen = validate_settings(Settings, "muon", settings)

    def build(shapes: Mapping[str, tuple[int, ...]]) -> Optimizer:
        rule = Muon(MuonPlan(read_layers(layers, shapes), shapes, chosen), chosen)
        return Optimizer(rule.init, rule.update, settings=chosen.scheduled(), shapes=shapes, layers=layers)

    return build_for_shapes(build, shapes)


class Muon:
    """Functions of the optimizer, for this plan and these settings."""

    def __init__(self, plan: MuonPlan, settings: Settings):
        self.plan, self.settings = plan, settings

    def init(self, params: Tree) -> State:
        """Zero momentum, and AdamW's moments zero."""
        return {
            "steps": jnp.zeros((), jnp.int32),
            "momentum": {name: jnp.zeros_like(params[name]) for name in self.plan.sides},
            "first": {name: jnp.zeros_like(params[name]) for name in self.plan.rest},
            "second": {name: jnp.zeros_like(params[name]) for name in self.plan.rest},
        }

    def update(self, grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        """Return the changes of the parameters, and the next state."""
        hyper, state = state["hyper"], state | {"steps": state["steps"] + 1}
        matrices, momentum = self._orthogonal({name: grads[name] for name in self.plan.sides}, state)
        changes = {name: -hyper["lr"] * (x + hyper["weight_decay"] * params[name]) for name, x in matrices.items()}
        rest = {name: grads[name] for name in self.plan.rest}
        rest, moments = step_by_adamw(rest, state, params, self.settings.model_copy(update=hyper))
        return changes | rest, state | momentum | moments

    def _orthogonal(self, grads: Tree, state: State) -> tuple[Tree, State]:
        """Muon's directions, and the next momentum."""
        mu = state["hyper"]["momentum"]
        momentum = jax.tree.map(lambda m, g: mu * m + (1.0 - mu) * g, state["momentum"], grads)
        ahead = momentum
        if self.settings.nesterov:
            ahead = jax.tree.map(lambda g, m: mu * m + (1.0 - mu) * g, grads, momentum)
        direction = {}
        for names in self.plan.stacks.values():
            direction |= self._iterated({name: ahead[name] for name in names})
        return direction, {"momentum": momentum}

    def _iterated(self, matrices: Tree) -> Tree:
        """Return the parameters of one stack with their singular values close to one, times their factors."""
        plan = self.plan
        flat = {name: value.reshape(plan.sides[name]) for name, value in matrices.items()}
        stack = jnp.stack([x.mT if plan.tall(name) else x for name, x in flat.items()])
        stack = newton_schulz(stack, self.settings.iterations, bfloat16=self.settings.bfloat16)
        turned = {name: stack[row].mT if plan.tall(name) else stack[row] for row, name in enumerate(matrices)}
        return {name: plan.factor[name] * x.reshape(matrices[name].shape) for name, x in turned.items()}


def newton_schulz(stack: Array, iterations: int, *, bfloat16: bool = False) -> Array:
    """Each matrix with its singular values brought close to one; as `newton_schulz` in torch.py."""
    a, b, c = COEFFICIENTS
    kind, (rows, columns) = stack.dtype, stack.shape[-2:]
    norm = jnp.sqrt((stack * stack).sum((-2, -1), keepdims=True))
    x = stack / jnp.maximum(norm, NORM)
    if bfloat16 or kind in NARROW or columns < WIDE * rows or not iterations:
        x = x.astype(jnp.bfloat16) if bfloat16 else x
        for _ in range(iterations):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.astype(kind)
    gram = x @ x.mT
    product = identity = jnp.eye(rows, dtype=kind)
    for iteration in range(iterations):
        factor = a * identity + b * gram + c * gram @ gram
        product = factor @ product if iteration else factor
        if iteration < iterations - 1:
            gram = factor @ (gram @ factor)
    return product @ x


make = muon
