"""SGD in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Rows
from suite.optimizers._base.jax import Optimizer, decayed, dense, forget, hyper

Tree = dict[str, Array]


def sgd(*, lr: float = 0.1, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent with momentum; decay spares vectors. Arguments as in `suite.optimizers.sgd.torch.SGD`."""
    plain = not momentum and not weight_decay  # the others reach every row of a table

    def init(params: Tree) -> dict[str, Any]:
        values = hyper(lr=lr, momentum=momentum, weight_decay=weight_decay)
        return {"hyper": values, "velocity": jax.tree.map(jnp.zeros_like, params)}

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at = state["hyper"]
        rows = {name: grad for name, grad in grads.items() if isinstance(grad, Rows)} if plain else {}
        by_rows = {name: Rows(grad.ids, -at["lr"] * grad.values) for name, grad in rows.items()}
        grads = dense({name: grad for name, grad in grads.items() if name not in rows}, params)
        grads = decayed(grads, params, at["weight_decay"])
        velocity = {name: at["momentum"] * state["velocity"][name] + grad for name, grad in grads.items()}
        direction = jax.tree.map(lambda g, v: g + at["momentum"] * v, grads, velocity) if nesterov else velocity
        updates = jax.tree.map(lambda d: -at["lr"] * d, direction)
        return updates | by_rows, state | {"velocity": state["velocity"] | velocity}

    def reset(state: dict[str, Any], moved: Tree) -> dict[str, Any]:
        return forget(state, moved, "velocity")

    return Optimizer(init, update, reset=reset)


make = sgd
