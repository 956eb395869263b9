"""Specification of RMSProp in float64 NumPy: Tieleman and Hinton 2012, lecture 6, slide 29.

Centred as in Graves 2013 (arXiv:1308.0850), equations 38 to 41; ε and η where torch and TensorFlow put them.
"""

from typing import Any

import numpy as np

from suite.optimizers.rmsprop import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Averages and velocity zero; TensorFlow's squares begin at 1, see `update`."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"second": zeros, "mean": zeros, "velocity": zeros}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, *, step: int, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step, counted from 0; returns new parameters and state."""
    new, second, mean, velocity = {}, {}, {}, {}
    lr, beta2, epsilon, tensorflow = settings.lr, settings.beta2, settings.epsilon, settings.tensorflow
    for name, w in params.items():
        g = grads[name] + (settings.weight_decay * w if w.ndim > 1 else 0.0)
        before = 1.0 if tensorflow and step == 0 else state["second"][name]
        second[name] = v = beta2 * before + (1.0 - beta2) * g**2  # slide 29; Graves eq. 38
        mean[name] = m = beta2 * state["mean"][name] + (1.0 - beta2) * g  # Graves eq. 39
        if settings.centered:
            v = np.maximum(v - m**2, 0.0)
        d = g / (np.sqrt(v + epsilon) if tensorflow else np.sqrt(v) + epsilon)  # Graves eq. 40 has ε inside
        velocity[name] = u = settings.momentum * state["velocity"][name] + (lr * d if tensorflow else d)
        new[name] = w - (u if tensorflow else lr * u)  # Graves eq. 41
    return new, {"second": second, "mean": mean, "velocity": velocity}
