"""State and update of optax's Schedule-Free optimizers (documentation of `optax.contrib.schedule_free_adamw`)."""

from typing import Literal

import numpy as np


def measure(seed: int, *, quantity: Literal["sgd-bytes", "adamw-bytes", "difference"], steps: int = 20) -> float:
    """Return a ratio of bytes, or a relative difference of updates.

    Args:
        seed: of the gradients.
        quantity: `sgd-bytes`: state of Schedule-Free SGD over that of SGD with momentum. `adamw-bytes`: state of
            Schedule-Free AdamW over that of AdamW. `difference`: between the last updates of scale_by_adam with b1 = 0
            and of scale_by_rms with eps_in_sqrt=False and bias_correction=True.
        steps: number of steps of `difference`.
    """
    from suite.studies.schedule_free_adam import jax as in_jax

    if quantity != "difference":
        free, base = in_jax.count_bytes(quantity == "adamw-bytes")
        return free / base
    adam, rms = in_jax.make_updates(np.random.default_rng(seed).standard_normal((steps, 100)))
    return float(np.linalg.norm(adam - rms) / np.linalg.norm(rms))
