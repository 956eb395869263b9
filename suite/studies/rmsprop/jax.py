"""RMSprop of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def moved(gradients: np.ndarray, decay: float | None, eps_in_sqrt: bool) -> np.ndarray:
    """Where parameters that start at 0 are after one step for each row of gradients."""
    with jax.enable_x64(True):
        if decay is None:
            optimizer = optax.rmsprop(0.01, eps_in_sqrt=eps_in_sqrt)
        else:
            optimizer = optax.rmsprop(0.01, decay=decay, eps_in_sqrt=eps_in_sqrt)
        parameter = jnp.zeros(gradients.shape[1], dtype=jnp.float64)
        state = optimizer.init(parameter)
        for gradient in gradients:
            updates, state = optimizer.update(jnp.asarray(gradient), state, parameter)
            parameter = parameter + jnp.asarray(updates)
        return np.asarray(parameter)
