"""Specification of AdamW in float64 NumPy: Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2, by its lines."""

from typing import Any

import numpy as np

from suite.optimizers.adamw import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Both moments zero (line 2)."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"first": zeros, "second": zeros}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, *, step: int, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step, counted from 0; returns new parameters and state."""
    new, first, second = {}, {}, {}
    beta1, beta2 = settings.beta1, settings.beta2
    for name, w in params.items():
        g = grads[name]
        first[name] = m = beta1 * state["first"][name] + (1.0 - beta1) * g  # line 7
        second[name] = v = beta2 * state["second"][name] + (1.0 - beta2) * g**2  # line 8
        if settings.bias_correction:
            m = m / (1.0 - beta1 ** (step + 1))  # line 9
            v = v / (1.0 - beta2 ** (step + 1))  # line 10
        decay = settings.weight_decay * w if w.ndim > 1 else 0.0
        new[name] = w - settings.lr * (
            m / (np.sqrt(v) + settings.epsilon) + decay
        )  # line 12, the decay times η as in torch
    return new, {"first": first, "second": second}
