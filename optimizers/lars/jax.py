"""LARS in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.declared import describe_settings
from suite.optimizers._base.jax import Optimizer, add_weight_decay, validate_settings
from suite.optimizers.lars import EPSILON
from suite.optimizers.lars.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def lars(**settings: Any) -> Optimizer:
    """Momentum with layer-wise rates; vectors follow plain momentum without decay.

    Args:
        settings: by name, as listed below.
    """
    return Optimizer(init, update, settings=validate_settings(Settings, "lars", settings).scheduled())


def init(params: Tree) -> State:
    """Zero velocity."""
    return {"velocity": jax.tree.map(jnp.zeros_like, params)}


def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
    """Return the changes of the parameters, and the next state."""
    hyper = state["hyper"]
    lr, momentum = hyper["lr"], hyper["momentum"]
    rates = jax.tree.map(lambda w, g: _rate(w, g, hyper), params, grads)
    grads = add_weight_decay(grads, params, hyper["weight_decay"])
    velocity = jax.tree.map(lambda v, r, g: momentum * v + lr * r * g, state["velocity"], rates, grads)
    return jax.tree.map(jnp.negative, velocity), state | {"velocity": velocity}


def _rate(w: Array, g: Array, hyper: Tree) -> Array | float:
    """Trust ratio of one parameter; 1 for a vector, and where the weights are zero."""
    if w.ndim < 2:
        return 1.0
    norm_w, norm_g = jnp.sqrt((w * w).sum()), jnp.sqrt((g * g).sum())
    ratio = hyper["trust"] * norm_w / (norm_g + hyper["weight_decay"] * norm_w + EPSILON)
    return jnp.where(norm_w > 0, ratio, 1.0)


make = lars
