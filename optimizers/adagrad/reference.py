"""Specification of AdaGrad in float64 NumPy: Duchi et al. 2011, figure 1 (diagonal), without constraint."""

from typing import Any

import numpy as np

from suite.optimizers.adagrad import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Empty sums, zero velocity."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"sum": zeros, "velocity": zeros}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    new, total, velocity = {}, {}, {}
    for name, w in params.items():
        g = grads[name] + (settings.weight_decay * w if w.ndim > 1 else 0.0)
        total[name] = s = state["sum"][name] + g**2  # figure 1: s_{t,i} = ‖g_{1:t,i}‖, squared
        h = np.sqrt(settings.initial_accumulator + s) + settings.epsilon  # figure 1: H_t = δI + diag(s_t), δ is ε here
        velocity[name] = settings.momentum * state["velocity"][name] + g / h
        new[name] = w - settings.lr * velocity[name]  # figure 1: the mirror-descent step with H_t
    return new, {"sum": total, "velocity": velocity}
