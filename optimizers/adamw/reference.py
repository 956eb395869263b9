"""Specification of AdamW in float64 NumPy: Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2, by its lines."""

from typing import Any

import numpy as np

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Both moments zero (line 2)."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"first": zeros, "second": zeros}


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    *,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    new, first, second = {}, {}, {}
    for name, w in params.items():
        g = grads[name]
        first[name] = m = beta1 * state["first"][name] + (1.0 - beta1) * g  # line 7
        second[name] = v = beta2 * state["second"][name] + (1.0 - beta2) * g**2  # line 8
        if bias_correction:
            m = m / (1.0 - beta1 ** (step + 1))  # line 9
            v = v / (1.0 - beta2 ** (step + 1))  # line 10
        decay = weight_decay * w if w.ndim > 1 else 0.0
        new[name] = w - lr * (m / (np.sqrt(v) + epsilon) + decay)  # line 12, the decay times η as in torch
    return new, {"first": first, "second": second}
