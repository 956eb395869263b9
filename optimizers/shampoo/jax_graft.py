"""Steps of the method that Shampoo grafts, in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers.shampoo import Graft
from suite.optimizers.shampoo.plan import GRAFT_EPSILON

Tree = dict[str, Array]
State = dict[str, Any]


def compute_averaging_weights(beta2: Array) -> tuple[Array, Array]:
    """Return the factors of the old value and of the new term: of an average, or of a sum where `beta2` is 1."""
    return beta2, jnp.where(beta2 < 1, 1.0 - beta2, 1.0)


def compute_grafted_steps(graft: Graft, grads: Tree, state: State) -> tuple[Tree, State]:
    """Return the grafted method's steps, without learning rate and momentum, and what they change in the state.

    Args:
        graft: the method.
        grads: gradients by name.
        state: of the optimizer.
    """
    past, gain = compute_averaging_weights(state["hyper"]["beta2"])
    mass = past * state["mass"] + gain
    if graft == "sgd":
        return grads, {"mass": mass}
    if graft == "adagrad":
        square = jax.tree.map(lambda old, g: old + g * g, state["square"], grads)
    else:
        square = jax.tree.map(lambda old, g: past * old + gain * g * g, state["square"], grads)
    scale = mass if graft == "adam" else 1.0
    steps = jax.tree.map(lambda g, second: g / (jnp.sqrt(second / scale) + GRAFT_EPSILON), grads, square)
    return steps, {"mass": mass, "square": square}
