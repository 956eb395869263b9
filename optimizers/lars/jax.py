"""LARS in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers.lars import EPSILON

Tree = dict[str, Array]


def lars(*, lr: float = 1.0, momentum: float = 0.9, weight_decay: float = 1e-4, trust: float = 1e-3) -> Optimizer:
    """Momentum with layer-wise rates; arguments as in `suite.optimizers.lars.torch.LARS`."""

    def init(params: Tree) -> dict[str, Any]:
        values = hyper(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        return {"hyper": values, "velocity": jax.tree.map(jnp.zeros_like, params)}

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at = state["hyper"]

        def rate(w: Array, g: Array) -> Array | float:
            if w.ndim < 2:
                return 1.0
            norm_w, norm_g = jnp.sqrt((w * w).sum()), jnp.sqrt((g * g).sum())
            ratio = at["trust"] * norm_w / (norm_g + at["weight_decay"] * norm_w + EPSILON)
            return jnp.where(norm_w > 0, ratio, 1.0)

        rates = jax.tree.map(rate, params, grads)
        grads = decayed(grads, params, at["weight_decay"])
        step = lambda v, r, g: at["momentum"] * v + at["lr"] * r * g  # noqa: E731
        velocity = jax.tree.map(step, state["velocity"], rates, grads)
        return jax.tree.map(jnp.negative, velocity), state | {"velocity": velocity}

    return Optimizer(init, update)


make = lars
