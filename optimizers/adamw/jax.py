"""AdamW in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.declared import describe_settings
from suite.optimizers._base.jax import Optimizer, densify_gradients, reset_blocks, validate_settings
from suite.optimizers.adamw.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def adamw(**settings: Any) -> Optimizer:
    """Adam with decoupled weight decay; decay spares vectors.

    Args:
        settings: by name, as listed below.
    """
    rule = AdamW(validate_settings(Settings, "adamw", settings))
    return Optimizer(rule.init, rule.update, settings=rule.settings.scheduled(), reset=rule.reset)


class AdamW:
    """Functions of the optimizer, for these settings."""

    def __init__(self, settings: Settings):
        self.settings = settings

    def init(self, params: Tree) -> State:
        """Both moments zero."""
        return {
            "steps": jnp.zeros((), jnp.int32),
            "first": jax.tree.map(jnp.zeros_like, params),
            "second": jax.tree.map(jnp.zeros_like, params),
        }

    def update(self, grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        """Return the changes of the parameters, and the next state."""
        hyper, steps = state["hyper"], state["steps"] + 1
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        grads = densify_gradients(grads, params)
        first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], grads)
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)
        weight1, weight2 = self._weight(beta1, steps), self._weight(beta2, steps)

        def change(w: Array, m: Array, v: Array) -> Array:
            direction = m / weight1 / (jnp.sqrt(v / weight2) + hyper["epsilon"])
            return -hyper["lr"] * (direction + hyper["weight_decay"] * w if w.ndim > 1 else direction)

        changes = jax.tree.map(change, params, first, second)
        return changes, state | {"steps": steps, "first": first, "second": second}

    def _weight(self, beta: Array, steps: Array) -> Array | float:
        """Return what the weights in an average of so many steps sum to: 1 - βᵗ, computed without cancellation."""
        return -jnp.expm1(steps * jnp.log(beta)) if self.settings.bias_correction else 1.0

    def reset(self, state: State, moved: Tree) -> State:
        """Return the state with zeros for blocks that have moved: {parameter (n, …): (n,) booleans}."""
        return reset_blocks(state, moved, "first", "second")


make = adamw
