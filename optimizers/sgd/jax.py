"""SGD in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import Optimizer, decayed, hyper

Tree = dict[str, Array]


def sgd(*, lr: float = 0.1, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent with momentum; decay spares vectors. Arguments as in `suite.optimizers.sgd.torch.SGD`."""

    def init(params: Tree) -> dict[str, Any]:
        values = hyper(lr=lr, momentum=momentum, weight_decay=weight_decay)
        return {"hyper": values, "velocity": jax.tree.map(jnp.zeros_like, params)}

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at = state["hyper"]
        grads = decayed(grads, params, at["weight_decay"])
        velocity = jax.tree.map(lambda v, g: at["momentum"] * v + g, state["velocity"], grads)
        direction = jax.tree.map(lambda g, v: g + at["momentum"] * v, grads, velocity) if nesterov else velocity
        return jax.tree.map(lambda d: -at["lr"] * d, direction), state | {"velocity": velocity}

    return Optimizer(init, update)


make = sgd
