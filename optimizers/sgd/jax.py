"""SGD in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Rows
from suite.declared import describe_settings
from suite.optimizers._base.jax import (
    Optimizer,
    add_weight_decay,
    densify_gradients,
    may_be_nonzero,
    reset_blocks,
    validate_settings,
)
from suite.optimizers.sgd.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def sgd(**settings: Any) -> Optimizer:
    """Gradient descent with momentum; decay spares vectors.

    Args:
        settings: by name, as listed below.
    """
    rule = SGD(validate_settings(Settings, "sgd", settings))
    return Optimizer(rule.init, rule.update, settings=rule.settings.scheduled(), reset=rule.reset)


class SGD:
    """Functions of the optimizer, for these settings."""

    def __init__(self, settings: Settings):
        self.settings = settings

    def init(self, params: Tree) -> State:
        """Zero velocity."""
        return {"velocity": jax.tree.map(jnp.zeros_like, params)}

    def update(self, grads: dict[str, Any], state: State, params: Tree) -> tuple[dict[str, Any], State]:
        """Compute the parameters' changes and the next state. A gradient given by rows may change only its rows."""
        hyper = state["hyper"]
        lr, momentum = hyper["lr"], hyper["momentum"]
        rows = self._rows(grads)
        by_rows = {name: Rows(grad.ids, -lr * grad.values) for name, grad in rows.items()}
        grads = densify_gradients({name: grad for name, grad in grads.items() if name not in rows}, params)
        grads = add_weight_decay(grads, params, hyper["weight_decay"])
        velocity = {name: momentum * state["velocity"][name] + grad for name, grad in grads.items()}
        direction = velocity
        if self.settings.nesterov:
            direction = jax.tree.map(lambda g, v: g + momentum * v, grads, velocity)
        changes = jax.tree.map(lambda d: -lr * d, direction)
        return changes | by_rows, state | {"velocity": state["velocity"] | velocity}

    def _rows(self, grads: dict[str, Any]) -> dict[str, Rows]:
        """Select the gradients by rows that change only these rows; momentum and decay change every row of a table."""
        if may_be_nonzero(self.settings.momentum) or may_be_nonzero(self.settings.weight_decay):
            return {}
        return {name: grad for name, grad in grads.items() if isinstance(grad, Rows)}

    def reset(self, state: State, moved: Tree) -> State:
        """Return the state with zeros for blocks that have moved: {parameter (n, …): (n,) booleans}."""
        return reset_blocks(state, moved, "velocity")


make = sgd
