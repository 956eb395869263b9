"""AdamW in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import Optimizer, dense, forget, hyper

Tree = dict[str, Array]


def adamw(
    *,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> Optimizer:
    """Adam with decoupled weight decay, sparing vectors. Arguments as in `suite.optimizers.adamw.torch.AdamW`."""

    def init(params: Tree) -> dict[str, Any]:
        return {
            "hyper": hyper(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay),
            "steps": jnp.zeros((), jnp.int32),
            "first": jax.tree.map(jnp.zeros_like, params),
            "second": jax.tree.map(jnp.zeros_like, params),
        }

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at, steps = state["hyper"], state["steps"] + 1
        beta1, beta2 = at["beta1"], at["beta2"]
        grads = dense(grads, params)
        first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], grads)
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)

        def held(beta: Array) -> Array | float:
            """1 - βᵗ, without its cancellation."""
            return -jnp.expm1(steps * jnp.log(beta)) if bias_correction else 1.0

        def change(w: Array, m: Array, v: Array) -> Array:
            direction = m / held(beta1) / (jnp.sqrt(v / held(beta2)) + at["epsilon"])
            return -at["lr"] * (direction + at["weight_decay"] * w if w.ndim > 1 else direction)

        return jax.tree.map(change, params, first, second), state | {"steps": steps, "first": first, "second": second}

    def reset(state: dict[str, Any], moved: Tree) -> dict[str, Any]:
        return forget(state, moved, "first", "second")

    return Optimizer(init, update, reset=reset)


make = adamw
