"""A training step of a hand-written jax model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Made = tuple[Any, Any, Callable[[Any, Any, Any], Any]]
asarray = jnp.asarray


def parameters(made: Made) -> int:
    """Return the number of trained values."""
    return sum(value.size for value in jax.tree.leaves(made[0]))


def step(made: Made, lr: float) -> Callable[[dict[str, np.ndarray]], float]:
    """One jitted function: gradient and SGD, loss to the host.

    A model is (parameters, state, loss); loss(parameters, state, batch) is the batch's mean loss and the new state.
    """
    params, state, loss = made
    now = [params, state]

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, state: Any, batch: Any) -> Any:
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, state, batch)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), state, value

    def call(batch: dict[str, np.ndarray]) -> float:
        *now[:], value = update(*now, batch)
        jax.block_until_ready(now)
        return float(value)

    return call
