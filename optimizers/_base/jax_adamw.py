"""AdamW's step in jax, for the parameters that another optimizer leaves to it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Tree = dict[str, Array]
State = dict[str, Any]


def step_adamw(grads: Tree, state: State, params: Tree, hyper: Mapping[str, Array | float]) -> tuple[Tree, State]:
    """Return AdamW's changes of the parameters that have a gradient here, and their next moments.

    Args:
        grads: by parameter.
        state: has the moments `first` and `second` by parameter, and `steps`, this one included.
        params: by name; there may be others.
        hyper: `lr`, `weight_decay`, and what begins with `fallback_`.
    """
    beta1, beta2 = hyper["fallback_beta1"], hyper["fallback_beta2"]
    first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)
    # what the weights in each average sum to: 1 - βᵗ, computed without cancellation
    weight1, weight2 = (-jnp.expm1(state["steps"] * jnp.log(beta)) for beta in (beta1, beta2))
    rate = hyper["fallback_ratio"] * hyper["lr"]

    def change(w: Array, m: Array, v: Array) -> Array:
        direction = m / weight1 / (jnp.sqrt(v / weight2) + hyper["fallback_epsilon"])
        return -rate * (direction + hyper["weight_decay"] * w if w.ndim > 1 else direction)

    changes = {name: change(params[name], first[name], second[name]) for name in grads}
    return changes, {"first": first, "second": second}
