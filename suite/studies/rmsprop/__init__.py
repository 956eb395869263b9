"""RMSprop in optax with the documented switch, against RMSprop in torch (documentation of `optax.rmsprop`)."""

import numpy as np


def measure(
    seed: int, *, decay: float | None = None, eps_in_sqrt: bool = False, size: float = 1.0, steps: int = 20
) -> float:
    """The relative difference of the distance moved between optax's and torch's RMSprop, in float64.

    Both take the same gradients, learning rate 0.01 and epsilon 1e-8, which is the default of both.

    Args:
        seed: of the gradients.
        decay: of the second moment, in both; absent: each library's default.
        eps_in_sqrt: the setting of optax; False "will match PyTorch's behavior".
        size: standard deviation of the gradients.
        steps: number of steps.
    """
    from suite.studies.rmsprop.jax import moved as moved_by_optax
    from suite.studies.rmsprop.torch import moved as moved_by_torch

    gradients = size * np.random.default_rng(seed).standard_normal((steps, 100))
    torch_moved = moved_by_torch(gradients, decay)
    return float(np.linalg.norm(moved_by_optax(gradients, decay, eps_in_sqrt) - torch_moved)) / float(
        np.linalg.norm(torch_moved)
    )
