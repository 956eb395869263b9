"""Specification of K-FAC in float64 NumPy, one sample at a time.

Equation numbers: [M] Martens and Grosse 2015 (arXiv:1503.05671), [G] Grosse and Martens 2016 (arXiv:1602.01407),
[O] Osawa et al. 2020 (arXiv:2002.06015). Taps are in torch's layout: {layer: (x, dy)}, dy the gradient of the summed
loss. Factors are per example: no batch size in them, so that damping means the same at any batch size.
"""

from typing import Any

import numpy as np

from suite.contract import Layer

Tree = dict[str, np.ndarray]
Taps = dict[str, tuple[np.ndarray, np.ndarray]]


def init(params: Tree) -> dict[str, Any]:
    """Zero factors of zero weight, zero velocity."""
    velocity = {name: np.zeros_like(value) for name, value in params.items()}
    return {"factors": {}, "mass": 0.0, "inverses": {}, "velocity": velocity}


def rows(x: np.ndarray, layer: Layer) -> np.ndarray:
    """The (T, in) inputs that one sample's weight gradient is made of, a 1 appended where there is a bias."""
    if layer.kind == "conv2d":
        k, s, p = layer.kernel, layer.stride, layer.padding
        x = np.pad(x, ((0, 0), (p, p), (p, p)))
        height, width = ((x.shape[1] - k) // s + 1, (x.shape[2] - k) // s + 1)
        places = [(i * s, j * s) for i in range(height) for j in range(width)]
        x = np.stack([x[:, i : i + k, j : j + k].ravel() for i, j in places])
    x = x.reshape(-1, x.shape[-1])
    return np.hstack([x, np.ones((len(x), 1))]) if len(layer.parameters) > 1 else x


def statistics(taps: Taps, weight: np.ndarray, layers: dict[str, Layer], params: Tree) -> dict[str, np.ndarray]:
    """Mean over samples of each layer's factors."""
    sums: dict[str, Any] = {}

    def add(name: str, value: np.ndarray) -> None:
        sums[name] = sums.get(name, 0.0) + value / weight.sum()

    for name, (x, dy) in taps.items():
        layer = layers[name]
        for n, w in enumerate(weight):
            if w == 0:
                continue
            g = dy[n] / w  # (…,) gradient of this sample's own loss
            if layer.kind == "batchnorm":
                pair = np.stack([(g * x[n]).reshape(len(g), -1).sum(1), g.reshape(len(g), -1).sum(1)], 1)  # (C, 2)
                add(name, w * pair[:, :, None] * pair[:, None, :])  # [O] eq. 15: unit-wise Fisher, (C, 2, 2)
                continue
            g = g.reshape(len(g), -1).T if layer.kind == "conv2d" else g.reshape(-1, g.shape[-1])  # (T, out)
            add(f"{name}/out", w * g.T @ g / len(g))  # Γ, [G] eq. 29
            if layer.kind == "embedding":
                vocabulary = params[layer.parameters[0]].shape[0]
                add(f"{name}/in", w * np.bincount(x[n].ravel(), minlength=vocabulary))  # one-hot inputs: diagonal
            else:
                a = rows(x[n], layer)
                add(f"{name}/in", w * a.T @ a)  # Ω, [G] eq. 28
    return sums


def invert(state: dict[str, Any], layers: dict[str, Layer], damping: float) -> dict[str, np.ndarray]:
    """Damped inverses of the bias-corrected factors, diagonal ones as vectors."""
    inverses = {}
    factors = {name: value / state["mass"] for name, value in state["factors"].items()}
    for name, layer in layers.items():
        if layer.kind == "batchnorm":
            continue
        a, g = factors[f"{name}/in"], factors[f"{name}/out"]
        mean_a = a.mean() if layer.kind == "embedding" else np.trace(a) / len(a)
        mean_g = np.trace(g) / len(g)
        pi = np.sqrt(max(mean_a, 1e-12) / max(mean_g, 1e-12))  # [M] eq. 31
        ridge_a, ridge_g = pi * np.sqrt(damping), np.sqrt(damping) / pi
        inverses[f"{name}/in"] = (
            1.0 / (a + ridge_a) if layer.kind == "embedding" else np.linalg.inv(a + ridge_a * np.eye(len(a)))
        )
        inverses[f"{name}/out"] = np.linalg.inv(g + ridge_g * np.eye(len(g)))
    return inverses


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    *,
    step: int,
    taps: Taps,
    weight: np.ndarray,
    layers: dict[str, Layer],
    lr: float = 0.1,
    momentum: float = 0.9,
    damping: float = 0.1,
    factor_decay: float = 0.95,
    factor_interval: int = 1,
    inverse_interval: int = 1,
    weight_decay: float = 0.0,
    rescale: bool = False,
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    state = dict(state)
    if step % factor_interval == 0:
        new = statistics(taps, weight, layers, params)
        old = state["factors"] or {name: np.zeros_like(value) for name, value in new.items()}
        state["factors"] = {n: factor_decay * old[n] + (1 - factor_decay) * new[n] for n in new}
        state["mass"] = factor_decay * state["mass"] + (1 - factor_decay)  # 1 - decay**k: corrects the zero start
    if step % inverse_interval == 0:
        state["inverses"] = invert(state, layers, damping)
    # diagonals cost nothing to invert and are never stale
    current = invert(state, {n: layer for n, layer in layers.items() if layer.kind == "embedding"}, damping)
    diagonals = {name: value for name, value in current.items() if name.endswith("/in")}
    inverses = state["inverses"] | diagonals
    direction = {name: g + (weight_decay * params[name] if g.ndim > 1 else 0.0) for name, g in grads.items()}
    for name, layer in layers.items():
        w, *bias = layer.parameters
        if layer.kind == "batchnorm":
            fisher = state["factors"][name] / state["mass"] + damping * np.eye(2)
            pair = np.stack([direction[w], direction[bias[0]]], 1)[:, :, None]
            direction[w], direction[bias[0]] = np.linalg.solve(fisher, pair)[:, :, 0].T
            continue
        a, g = inverses[f"{name}/in"], inverses[f"{name}/out"]
        matrix = direction[w].reshape(len(direction[w]), -1)
        if layer.kind == "embedding":
            direction[w] = a[:, None] * matrix @ g
            continue
        full = g @ np.hstack([matrix, *(direction[b][:, None] for b in bias)]) @ a  # [M] eq. 21: G⁻¹ ∇W A⁻¹
        direction[w] = full[:, : matrix.shape[1]].reshape(direction[w].shape)
        for b in bias:
            direction[b] = full[:, -1]
    velocity = {name: momentum * state["velocity"][name] + d for name, d in direction.items()}
    new = {name: value - lr * velocity[name] for name, value in params.items()}
    if rescale:  # [O] §6.4: norm √(2 · d_out) after each step
        for layer in layers.values():
            if layer.kind in ("linear", "conv2d"):
                w = new[layer.parameters[0]]
                new[layer.parameters[0]] = np.sqrt(2.0 * len(w)) * w / (np.linalg.norm(w) + 1e-9)
    return new, state | {"velocity": velocity}
