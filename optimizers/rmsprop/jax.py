"""RMSProp in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.declared import describe_settings
from suite.optimizers._base.jax import (
    Optimizer,
    add_weight_decay,
    check_momentum,
    densify_gradients,
    list_schedulable,
    may_be_nonzero,
    reset_blocks,
    validate_settings,
)
from suite.optimizers.rmsprop.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def rmsprop(**settings: Any) -> Optimizer:
    """Gradients divided by the root of their squares' recent average.

    A momentum that is 0 here stays 0, because the state then holds no velocity: `state["hyper"]` has no momentum, and
    one that is put there is rejected.

    Args:
        settings: by name, as listed below.
    """
    rule = RMSprop(validate_settings(Settings, "rmsprop", settings))
    return Optimizer(rule.init, rule.update, settings=list_schedulable(rule.settings), reset=rule.reset)


class RMSprop:
    """Functions of the optimizer, for these settings."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.moving = may_be_nonzero(settings.momentum)
        self.first_square = float(settings.tensorflow)  # what the average of the squared gradient starts at

    def init(self, params: Tree) -> State:
        """Averages at their start; zero velocity, if there is momentum."""
        return {
            "second": jax.tree.map(lambda w: jnp.full_like(w, self.first_square), params),
            "mean": jax.tree.map(jnp.zeros_like, params) if self.settings.centered else {},
            "velocity": jax.tree.map(jnp.zeros_like, params) if self.moving else {},
        }

    def update(self, grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        """Return the changes of the parameters, and the next state."""
        hyper = state["hyper"]
        grads = add_weight_decay(densify_gradients(grads, params), params, hyper["weight_decay"])
        variance, averages = self._averages(grads, state)
        direction = jax.tree.map(lambda g, v: self._scaled(g, v, hyper["epsilon"]), grads, variance)
        # TensorFlow's velocity includes η
        inside, outside = (hyper["lr"], 1.0) if self.settings.tensorflow else (1.0, hyper["lr"])
        direction = jax.tree.map(lambda d: inside * d, direction)
        velocity: Tree = {}
        if self.moving:
            velocity = direction = jax.tree.map(lambda u, d: hyper["momentum"] * u + d, state["velocity"], direction)
        else:
            check_momentum(hyper)
        return jax.tree.map(lambda d: -outside * d, direction), state | averages | {"velocity": velocity}

    def _averages(self, grads: Tree, state: State) -> tuple[Tree, State]:
        """Return what the root is taken of, and the next averages `second` and `mean`."""
        beta2 = state["hyper"]["beta2"]
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)
        if not self.settings.centered:
            return second, {"second": second, "mean": {}}
        mean = jax.tree.map(lambda m, g: beta2 * m + (1.0 - beta2) * g, state["mean"], grads)
        variance = jax.tree.map(lambda v, m: jnp.maximum(v - m * m, 0.0), second, mean)
        return variance, {"second": second, "mean": mean}

    def _scaled(self, grad: Array, variance: Array, epsilon: Array) -> Array:
        """A gradient divided by the root of its variance."""
        if self.settings.tensorflow:
            return grad / jnp.sqrt(variance + epsilon)
        return grad / (jnp.sqrt(variance) + epsilon)

    def reset(self, state: State, moved: Tree) -> State:
        """Return the state at its start for blocks that have moved: {parameter (n, …): (n,) booleans}."""
        state = reset_blocks(state, moved, *(name for name in ("mean", "velocity") if state[name]))
        second = dict(state["second"])
        for name, mask in moved.items():
            blocks = mask.reshape(-1, *[1] * (second[name].ndim - 1))
            second[name] = jnp.where(blocks, self.first_square, second[name])
        return state | {"second": second}


make = rmsprop
