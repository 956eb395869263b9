"""Specification of SGD in float64 NumPy (Sutskever et al. 2013, with the learning rate outside the velocity)."""

from typing import Any

import numpy as np

from suite.optimizers.sgd import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Zero velocity."""
    return {"velocity": {name: np.zeros_like(value) for name, value in params.items()}}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    new, velocity = {}, {}
    for name, w in params.items():
        g = grads[name] + (settings.weight_decay * w if w.ndim > 1 else 0.0)
        velocity[name] = v = settings.momentum * state["velocity"][name] + g
        new[name] = w - settings.lr * (g + settings.momentum * v if settings.nesterov else v)
    return new, {"velocity": velocity}
