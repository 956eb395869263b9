"""Schedule-Free SGD of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def average(curvature: np.ndarray, start: np.ndarray, rate: float, beta: float, steps: int) -> np.ndarray:
    """Return the parameters for evaluation after the steps on a quadratic loss with its minimum at 0."""
    with jax.enable_x64(True):
        optimizer = optax.contrib.schedule_free(optax.sgd(rate), rate, b1=beta)
        parameters = jnp.asarray(start)
        state = optimizer.init(parameters)
        for _ in range(steps):
            updates, state = optimizer.update(jnp.asarray(curvature) * parameters, state, parameters)
            parameters = parameters + jnp.asarray(updates)
        return np.asarray(optax.contrib.schedule_free_eval_params(state, parameters))
