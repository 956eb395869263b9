"""Root mean square of AdamW's update (emerging_optimizers, `get_muon_scale_factor`)."""

import numpy as np


def measure(
    seed: int, *, beta1: float = 0.9, beta2: float, signal: float = 0.0, parameters: int = 20_000, steps: int = 2000
) -> float:
    """Return the root mean square of Adam's last update, in learning rates, without weight decay.

    Args:
        seed: of the gradients, which are independent normal numbers of spread 1.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        signal: mean of the gradients.
        parameters: number of parameters.
        steps: number of steps.
    """
    random = np.random.default_rng(seed)
    first, second = np.zeros(parameters), np.zeros(parameters)
    for _ in range(steps):
        gradient = signal + random.standard_normal(parameters)
        first += (1 - beta1) * (gradient - first)
        second += (1 - beta2) * (gradient**2 - second)
    update = first / (1 - beta1**steps) / np.sqrt(second / (1 - beta2**steps))
    return float(np.sqrt(np.mean(update**2)))
