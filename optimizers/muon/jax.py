"""Muon in jax."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.optimizers._base.jax import Optimizer, hyper
from suite.optimizers.muon.plan import COEFFICIENTS, NORM, WIDE, MuonPlan

Tree = dict[str, Array]


def muon(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    lr: float = 0.02,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.01,
    iterations: int = 5,
    scale: str = "original",
    excluded: Iterable[str] | None = None,
    bfloat16: bool = False,
    fallback_ratio: float = 0.1,
    fallback_beta1: float = 0.9,
    fallback_beta2: float = 0.95,
    fallback_epsilon: float = 1e-8,
) -> Optimizer:
    """Momentum with singular values close to one, and AdamW for the rest.

    Arguments as in `suite.optimizers.muon.torch.Muon`; `shapes` are the parameters' shapes by name.
    """
    plan = MuonPlan(layers, shapes, excluded=excluded, scale=scale)
    scalars = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "fallback_ratio": fallback_ratio}
    scalars |= {"fallback_beta1": fallback_beta1, "fallback_beta2": fallback_beta2}

    def init(params: Tree) -> dict[str, Any]:
        return {
            "hyper": hyper(**scalars, fallback_epsilon=fallback_epsilon),
            "steps": jnp.zeros((), jnp.int32),
            "momentum": {name: jnp.zeros_like(params[name]) for name in plan.sides},
            "first": {name: jnp.zeros_like(params[name]) for name in plan.rest},
            "second": {name: jnp.zeros_like(params[name]) for name in plan.rest},
        }

    def orthogonal(ahead: Tree) -> Tree:
        """Muon's directions, stack by stack."""
        done = {}
        for names in plan.stacks.values():
            flat = [ahead[name].reshape(plan.sides[name]) for name in names]
            stack = jnp.stack([x.mT if plan.tall(name) else x for name, x in zip(names, flat, strict=True)])
            stack = newton_schulz(stack, iterations, bfloat16=bfloat16)
            for row, name in enumerate(names):
                part = stack[row].mT if plan.tall(name) else stack[row]
                done[name] = plan.factor[name] * part.reshape(ahead[name].shape)
        return done

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at, steps = state["hyper"], state["steps"] + 1
        mu, beta1, beta2 = at["momentum"], at["fallback_beta1"], at["fallback_beta2"]
        mine, others = ({name: grads[name] for name in names} for names in (plan.sides, plan.rest))
        buffers = jax.tree.map(lambda old, g: mu * old + (1.0 - mu) * g, state["momentum"], mine)
        ahead = jax.tree.map(lambda g, new: mu * new + (1.0 - mu) * g, mine, buffers) if nesterov else buffers
        first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], others)
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], others)
        held1, held2 = (-jnp.expm1(steps * jnp.log(beta)) for beta in (beta1, beta2))  # 1 - βᵗ without its cancellation
        adam = jax.tree.map(lambda m, v: m / held1 / (jnp.sqrt(v / held2) + at["fallback_epsilon"]), first, second)
        direction = orthogonal(ahead) | adam

        def change(name: str, w: Array) -> Array:
            rate = at["lr"] if name in plan.sides else at["fallback_ratio"] * at["lr"]
            return -rate * (direction[name] + at["weight_decay"] * w if w.ndim > 1 else direction[name])

        state = state | {"steps": steps, "momentum": buffers, "first": first, "second": second}
        return {name: change(name, w) for name, w in params.items()}, state

    return Optimizer(init, update)


def newton_schulz(stack: Array, iterations: int, *, bfloat16: bool = False) -> Array:
    """Each matrix with its singular values brought close to one; see the torch twin."""
    a, b, c = COEFFICIENTS
    kind, (rows, columns) = stack.dtype, stack.shape[-2:]
    norm = jnp.sqrt((stack * stack).sum((-2, -1), keepdims=True))
    x = stack / jnp.maximum(norm, NORM)
    if bfloat16 or columns < WIDE * rows or not iterations:
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
