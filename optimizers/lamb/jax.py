"""LAMB in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.declared import describe_settings
from suite.optimizers._base.jax import Optimizer, validate_settings
from suite.optimizers.lamb.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def lamb(**settings: Any) -> Optimizer:
    """Adam's direction with layer-wise rates; vectors follow Adam without decay.

    Args:
        settings: by name, as listed below.
    """
    rule = LAMB(validate_settings(Settings, "lamb", settings))
    return Optimizer(rule.init, rule.update, settings=rule.settings.scheduled())


class LAMB:
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
        first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], grads)
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)
        weight1, weight2 = self._weight(beta1, steps), self._weight(beta2, steps)

        def change(w: Array, m: Array, v: Array) -> Array:
            adam = m / weight1 / (jnp.sqrt(v / weight2) + hyper["epsilon"])
            return -hyper["lr"] * self._adapted(w, adam, hyper)

        changes = jax.tree.map(change, params, first, second)
        return changes, state | {"steps": steps, "first": first, "second": second}

    def _weight(self, beta: Array, steps: Array) -> Array | float:
        """Return the sum of the weights in an average of so many steps: 1 - βᵗ, computed without cancellation."""
        return -jnp.expm1(steps * jnp.log(beta)) if self.settings.bias_correction else 1.0

    def _adapted(self, w: Array, adam: Array, hyper: Tree) -> Array:
        """Adam's direction of one parameter with decay and the ratio."""
        direction = adam + hyper["weight_decay"] * w if w.ndim > 1 else adam
        if w.ndim > 1 or self.settings.adapt_vectors:
            return _ratio(w, direction, hyper) * direction
        return direction


def _ratio(w: Array, direction: Array, hyper: Tree) -> Array:
    """‖w‖ / ‖u‖ within its bounds, 1 where either is 0."""
    norm_w, norm_u = jnp.sqrt((w * w).sum()), jnp.sqrt((direction * direction).sum())
    none = (norm_w == 0) | (norm_u == 0)
    ratio = jnp.maximum(jnp.where(none, 1.0, norm_w / jnp.where(none, 1.0, norm_u)), hyper["least_ratio"])
    return jnp.where(hyper["largest_ratio"] > 0, jnp.minimum(ratio, hyper["largest_ratio"]), ratio)


make = lamb
