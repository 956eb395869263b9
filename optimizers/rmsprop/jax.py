"""RMSProp in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import Optimizer, decayed, dense, forget, hyper, still

Tree = dict[str, Array]


def rmsprop(
    *,
    lr: float = 1e-3,
    momentum: float = 0.0,
    beta2: float = 0.9,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    centered: bool = False,
    tensorflow: bool = False,
) -> Optimizer:
    """Gradients over the root of their squares' average; arguments as in `suite.optimizers.rmsprop.torch.RMSprop`.

    A momentum that is 0 here stays 0, as no velocity is held for it: none is in `state["hyper"]`, and one put there is
    refused.
    """

    def init(params: Tree) -> dict[str, Any]:
        values = hyper(lr=lr, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)
        return {
            "hyper": values | (hyper(momentum=momentum) if momentum else {}),
            "second": jax.tree.map(lambda w: jnp.full_like(w, float(tensorflow)), params),
            "mean": jax.tree.map(jnp.zeros_like, params) if centered else {},
            "velocity": jax.tree.map(jnp.zeros_like, params) if momentum else {},
        }

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at, beta2 = state["hyper"], state["hyper"]["beta2"]
        grads = decayed(dense(grads, params), params, at["weight_decay"])
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)
        variance, mean, velocity = second, {}, {}
        if centered:
            mean = jax.tree.map(lambda m, g: beta2 * m + (1.0 - beta2) * g, state["mean"], grads)
            variance = jax.tree.map(lambda v, m: jnp.maximum(v - m * m, 0.0), second, mean)

        def scaled(g: Array, v: Array) -> Array:
            return g / (jnp.sqrt(v + at["epsilon"]) if tensorflow else jnp.sqrt(v) + at["epsilon"])

        direction = jax.tree.map(scaled, grads, variance)
        inside, outside = (at["lr"], 1.0) if tensorflow else (1.0, at["lr"])  # where η stands: in the velocity or not
        direction = jax.tree.map(lambda d: inside * d, direction)
        if momentum:
            velocity = direction = jax.tree.map(lambda u, d: at["momentum"] * u + d, state["velocity"], direction)
        else:
            still(at)
        updates = jax.tree.map(lambda d: -outside * d, direction)
        return updates, state | {"second": second, "mean": mean, "velocity": velocity}

    def reset(state: dict[str, Any], moved: Tree) -> dict[str, Any]:
        state = forget(state, moved, *(name for name in ("second", "mean", "velocity") if state[name]))
        shapes = {name: (-1, *[1] * (state["second"][name].ndim - 1)) for name in moved}
        again = {n: jnp.where(m.reshape(shapes[n]), float(tensorflow), state["second"][n]) for n, m in moved.items()}
        return state | {"second": state["second"] | again}

    return Optimizer(init, update, reset=reset)


make = rmsprop
