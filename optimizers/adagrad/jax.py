"""AdaGrad in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Rows
from suite.optimizers._base.jax import Optimizer, decayed, dense, forget, hyper, merged, still

Tree = dict[str, Array]


def adagrad(
    *,
    lr: float = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    epsilon: float = 1e-10,
    initial_accumulator: float = 0.0,
) -> Optimizer:
    """Diagonal AdaGrad; arguments as in `suite.optimizers.adagrad.torch.Adagrad`.

    A momentum that is 0 here stays 0, as no velocity is held for it: none is in `state["hyper"]`, and one put there is
    refused.
    """
    plain = not momentum and not weight_decay  # the others reach every row of a table

    def init(params: Tree) -> dict[str, Any]:
        values = hyper(lr=lr, weight_decay=weight_decay, epsilon=epsilon, initial_accumulator=initial_accumulator)
        return {
            "hyper": values | (hyper(momentum=momentum) if momentum else {}),
            "sum": jax.tree.map(jnp.zeros_like, params),
            "velocity": jax.tree.map(jnp.zeros_like, params) if momentum else {},
        }

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at, held = state["hyper"], state["sum"]

        def scaled(g: Array, s: Array) -> Array:
            return g / (jnp.sqrt(at["initial_accumulator"] + s) + at["epsilon"])

        rows = {name: merged(grad) for name, grad in grads.items() if isinstance(grad, Rows)} if plain else {}
        grads = dense({name: grad for name, grad in grads.items() if name not in rows}, params)
        grads = decayed(grads, params, at["weight_decay"])
        total = {name: held[name] + grad * grad for name, grad in grads.items()}
        total |= {name: held[name].at[grad.ids].add(grad.values**2) for name, grad in rows.items()}
        direction = {name: scaled(grad, total[name]) for name, grad in grads.items()}
        velocity = {}
        if momentum:
            velocity = direction = jax.tree.map(lambda v, d: at["momentum"] * v + d, state["velocity"], direction)
        else:
            still(at)
        updates: dict[str, Any] = jax.tree.map(lambda d: -at["lr"] * d, direction)
        for name, grad in rows.items():
            updates[name] = Rows(grad.ids, -at["lr"] * scaled(grad.values, total[name][grad.ids]))
        return updates, state | {"sum": total, "velocity": velocity}

    def reset(state: dict[str, Any], moved: Tree) -> dict[str, Any]:
        return forget(state, moved, "sum", *(["velocity"] if momentum else []))

    return Optimizer(init, update, reset=reset)


make = adagrad
