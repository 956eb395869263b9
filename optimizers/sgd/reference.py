"""Specification of SGD in float64 NumPy (Sutskever et al. 2013, with the learning rate outside the velocity)."""

from typing import Any

import numpy as np

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Zero velocity."""
    return {"velocity": {name: np.zeros_like(value) for name, value in params.items()}}


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    *,
    lr: float = 0.1,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    new, velocity = {}, {}
    for name, w in params.items():
        g = grads[name] + (weight_decay * w if w.ndim > 1 else 0.0)
        velocity[name] = v = momentum * state["velocity"][name] + g
        new[name] = w - lr * (g + momentum * v if nesterov else v)
    return new, {"velocity": velocity}
