"""Schedule-Free optimizers of optax, and what they are compared with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

PARAMETERS = 100_000


def count_bytes(adaptive: bool) -> tuple[int, int]:
    """Return the bytes of the state of a Schedule-Free optimizer, and of its base optimizer with momentum.

    Args:
        adaptive: AdamW instead of SGD.
    """
    parameters = jnp.zeros(PARAMETERS)
    if adaptive:
        pair = optax.contrib.schedule_free_adamw(0.01), optax.adamw(0.01)
    else:
        pair = optax.contrib.schedule_free_sgd(0.1), optax.sgd(0.1, momentum=0.9)
    free, base = (sum(leaf.nbytes for leaf in jax.tree.leaves(one.init(parameters))) for one in pair)
    return free, base


def make_updates(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the updates of scale_by_adam and of scale_by_rms after a step for each row of gradients, in float64."""
    pair = optax.scale_by_adam(b1=0.0), optax.scale_by_rms(0.999, eps_in_sqrt=False, bias_correction=True)
    with jax.enable_x64(True):
        first, second = (_update(one, gradients) for one in pair)
    return first, second


def _update(optimizer: optax.GradientTransformation, gradients: np.ndarray) -> np.ndarray:
    parameters = updates = jnp.zeros(gradients.shape[1], dtype=jnp.float64)
    state = optimizer.init(parameters)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, parameters)
    return np.asarray(updates)
