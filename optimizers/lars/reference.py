"""Specification of LARS in float64 NumPy; equation numbers of You et al. 2017 (arXiv:1708.03888)."""

from typing import Any

import numpy as np

from suite.optimizers.lars import EPSILON, Settings

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
        g, rate = grads[name], 1.0
        if w.ndim > 1:
            norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
            ratio = settings.trust * norm_w / (norm_g + settings.weight_decay * norm_w + EPSILON)  # eq. 6
            rate = ratio if norm_w > 0 else 1.0
            g = g + settings.weight_decay * w
        velocity[name] = settings.momentum * state["velocity"][name] + settings.lr * rate * g  # algorithm 1
        new[name] = w - velocity[name]
    return new, {"velocity": velocity}
