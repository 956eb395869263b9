"""SGD with momentum in torch against the forms that its documentation contrasts with it."""

import numpy as np

MOMENTUM = 0.9


def measure(seed: int, *, inside: bool = False, dampening: float = 0.0, decay: float = 1.0, steps: int = 20) -> float:
    """Return the relative difference of the way that parameters move from a buffer of zeros, in float64.

    Args:
        seed: of the gradients, independent normal numbers.
        inside: whether the learning rate multiplies the gradient inside the buffer, as in Sutskever et al., and not
            the buffer.
        dampening: of the gradient, in torch and in the other form.
        decay: factor of the learning rate in each step.
        steps: number of steps.
    """
    from suite.studies.momentum_forms.torch import move

    gradients = np.random.default_rng(seed).standard_normal((steps, 100))
    rates = 0.1 * decay ** np.arange(steps)
    moved = buffer = np.zeros(100)
    for gradient, rate in zip(gradients, rates, strict=True):
        buffer = MOMENTUM * buffer + (1 - dampening) * gradient * (rate if inside else 1)
        moved = moved - buffer * (1 if inside else rate)
    in_torch = move(gradients, rates, MOMENTUM, dampening)
    return float(np.linalg.norm(in_torch - moved) / np.linalg.norm(in_torch))
