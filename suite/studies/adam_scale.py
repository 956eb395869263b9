"""Adam's steps when all gradients are multiplied by one factor (Kingma, Ba, arXiv:1412.6980)."""

import numpy as np


def measure(
    seed: int, *, factor: float, epsilon: float = 0.0, size: float = 1.0, parameters: int = 1000, steps: int = 100
) -> float:
    """The largest change of a step, relative to the learning rate, when the gradients are multiplied by `factor`.

    Section 2.1: "The effective stepsize is also invariant to the scale of the gradients", for epsilon = 0; algorithm 1
    and all implementations use epsilon = 1e-8. Decays 0.9 and 0.999.

    Args:
        seed: of the normal gradients.
        factor: c of section 2.1.
        epsilon: added to the root of the second moment.
        size: standard deviation of the gradients before multiplication.
        parameters: independent parameters.
        steps: number of steps.
    """
    gradients = size * np.random.default_rng(seed).standard_normal((steps, parameters))
    return float(np.max(np.abs(adam(factor * gradients, epsilon) - adam(gradients, epsilon))))


def adam(gradients: np.ndarray, epsilon: float, beta1: float = 0.9, beta2: float = 0.999) -> np.ndarray:
    """The steps of algorithm 1 divided by the learning rate; (steps, parameters)."""
    first = second = np.zeros(gradients.shape[1])
    steps = np.zeros_like(gradients)
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        steps[step - 1] = first / (1 - beta1**step) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
    return steps
