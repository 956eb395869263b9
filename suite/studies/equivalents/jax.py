"""Optimizers of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def move_nadam(gradients: np.ndarray) -> np.ndarray:
    """Return how far optax.nadam moves parameters of 1, by one step for each row of gradients."""
    with jax.enable_x64(True):
        optimizer = optax.nadam(0.01)
        parameter = jnp.ones(gradients.shape[1], dtype=jnp.float64)
        state = optimizer.init(parameter)
        for gradient in gradients:
            updates, state = optimizer.update(jnp.asarray(gradient), state, parameter)
            parameter = parameter + jnp.asarray(updates)
        return np.asarray(parameter) - 1
