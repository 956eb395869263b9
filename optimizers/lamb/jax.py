"""LAMB in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import Optimizer, hyper

Tree = dict[str, Array]


def lamb(
    *,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
    adapt_vectors: bool = False,
    least_ratio: float = 0.0,
    largest_ratio: float = 0.0,
) -> Optimizer:
    """Adam's direction with layer-wise rates; arguments as in `suite.optimizers.lamb.torch.LAMB`."""

    def init(params: Tree) -> dict[str, Any]:
        values = hyper(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)
        return {
            "hyper": values | hyper(least_ratio=least_ratio, largest_ratio=largest_ratio),
            "steps": jnp.zeros((), jnp.int32),
            "first": jax.tree.map(jnp.zeros_like, params),
            "second": jax.tree.map(jnp.zeros_like, params),
        }

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at, steps = state["hyper"], state["steps"] + 1
        beta1, beta2 = at["beta1"], at["beta2"]
        first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], grads)
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)

        def held(beta: Array) -> Array | float:
            """1 - βᵗ, without its cancellation."""
            return -jnp.expm1(steps * jnp.log(beta)) if bias_correction else 1.0

        def change(w: Array, m: Array, v: Array) -> Array:
            direction = m / held(beta1) / (jnp.sqrt(v / held(beta2)) + at["epsilon"])
            if w.ndim > 1:
                direction = direction + at["weight_decay"] * w
            if w.ndim > 1 or adapt_vectors:
                direction = _ratio(w, direction, at) * direction
            return -at["lr"] * direction

        return jax.tree.map(change, params, first, second), state | {"steps": steps, "first": first, "second": second}

    return Optimizer(init, update)


def _ratio(w: Array, direction: Array, at: dict[str, Array]) -> Array:
    """‖w‖ / ‖u‖ within its bounds, 1 where either is 0."""
    norm_w, norm_u = jnp.sqrt((w * w).sum()), jnp.sqrt((direction * direction).sum())
    none = (norm_w == 0) | (norm_u == 0)
    ratio = jnp.maximum(jnp.where(none, 1.0, norm_w / jnp.where(none, 1.0, norm_u)), at["least_ratio"])
    return jnp.where(at["largest_ratio"] > 0, jnp.minimum(ratio, at["largest_ratio"]), ratio)


make = lamb
