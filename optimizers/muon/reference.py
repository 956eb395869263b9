"""Specification of Muon in float64 NumPy: Jordan et al. 2024 (kellerjordan.github.io/posts/muon), one matrix at a time.

[M] is Liu et al. 2025 (arXiv:2502.16982).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite.contract import Layer
from suite.optimizers._base.reference import step_adamw
from suite.optimizers.muon import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Zero momentum, and AdamW's moments zero."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"momentum": zeros, "first": zeros, "second": zeros}


def newton_schulz(u: np.ndarray, iterations: int) -> np.ndarray:
    """Return the post's `newtonschulz5`, in whatever type u is."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u / max(np.linalg.norm(u), 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    settings: Settings,
    *,
    step: int,
    layers: Mapping[str, Layer],
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step, counted from 0; returns new parameters and state."""
    known = {name: layer for name, layer in layers.items() if layer.kind in ("linear", "conv2d")}
    last = [name for name, layer in known.items() if layer.kind == "linear"][-1:]
    left_out = last if settings.excluded is None else settings.excluded
    treated = [layer.parameters[0] for name, layer in known.items() if name not in left_out]
    new, buffer, first, second = {}, dict(state["momentum"]), dict(state["first"]), dict(state["second"])
    momentum = settings.momentum
    for name, w in params.items():
        g = grads[name]
        if name in treated:
            buffer[name] = momentum * buffer[name] + (1.0 - momentum) * g
            u = momentum * buffer[name] + (1.0 - momentum) * g if settings.nesterov else buffer[name]
            matrix = u.reshape(len(u), -1)
            rows, columns = matrix.shape
            original = settings.scale == "original"
            s = max(1.0, rows / columns) ** 0.5 if original else 0.2 * max(rows, columns) ** 0.5  # [M] 4
            x = newton_schulz(matrix, settings.iterations).reshape(w.shape)
            new[name] = w - settings.lr * (s * x + settings.weight_decay * w)
        else:
            new[name], (first[name], second[name]) = step_adamw(w, g, (first[name], second[name]), settings, step)
    return new, {"momentum": buffer, "first": first, "second": second}
