"""Specification of LAMB in float64 NumPy: You et al. 2020 (arXiv:1904.00962), algorithm 2, lines from "Set m₀" on."""

from typing import Any

import numpy as np

from suite.optimizers.lamb import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Both moments zero."""
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
        first[name] = m = beta1 * state["first"][name] + (1.0 - beta1) * g  # line 5
        second[name] = v = beta2 * state["second"][name] + (1.0 - beta2) * g**2  # line 6
        if settings.bias_correction:
            m = m / (1.0 - beta1 ** (step + 1))  # line 7
            v = v / (1.0 - beta2 ** (step + 1))  # line 8
        decay = settings.weight_decay * w if w.ndim > 1 else 0.0
        u = m / (np.sqrt(v) + settings.epsilon) + decay  # line 9, and its sum with λ x
        ratio = 1.0
        if w.ndim > 1 or settings.adapt_vectors:
            norm_w, norm_u = np.linalg.norm(w), np.linalg.norm(u)
            ratio = norm_w / norm_u if norm_w > 0 and norm_u > 0 else 1.0  # line 10 with φ(z) = z
            ratio = max(ratio, settings.least_ratio)
            ratio = min(ratio, settings.largest_ratio) if settings.largest_ratio else ratio
        new[name] = w - settings.lr * ratio * u  # line 10
    return new, {"first": first, "second": second}
