"""Specification of Shampoo in float64 NumPy, one block at a time.

Sources: [G] Gupta, Koren and Singer 2018 (arXiv:1802.09568), [A] Agarwal et al. 2020 (arXiv:2002.11803).
"""

from typing import Any

import numpy as np

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """No statistics, no roots, zero velocity."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"factors": {}, "roots": {}, "square": zeros, "mass": 0.0, "velocity": zeros}


def matrix(value: np.ndarray) -> np.ndarray:
    """First side against the rest, sides of length 1 left out; what has a single side is a vector."""
    sides = [side for side in value.shape if side > 1]
    return value.reshape(sides[0], -1) if len(sides) > 1 else value.reshape(-1)


def cut(value: np.ndarray, block_size: int) -> list[tuple[slice, slice]]:
    """Places of a matrix's blocks, row by row; the last ones may be smaller."""
    sides = []
    for side in value.shape:
        count = int(np.ceil(side / block_size))
        length = int(np.ceil(side / count))
        sides.append([slice(start, start + length) for start in range(0, side, length)])
    return [(rows, columns) for rows in sides[0] for columns in sides[1]]


def inverse_root(a: np.ndarray, epsilon: float) -> np.ndarray | None:
    """(A + ε λmax I)^(-1/4), exponent -1 / (2 k) with order k = 2 ([G] algorithm 2); None where there is none."""
    values, vectors = np.linalg.eigh(a)
    values = np.maximum(values, 0.0) + epsilon * values[-1]
    return (vectors * values**-0.25) @ vectors.T if values[0] > 0 else None


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    *,
    step: int,
    lr: float = 0.1,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    beta2: float = 0.99,
    epsilon: float = 1e-6,
    block_size: int = 128,
    inverse_interval: int = 1,
    start_preconditioning: int = 5,
    graft: str = "sgd",
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    start = max(start_preconditioning, 1)
    factors, roots = dict(state["factors"]), dict(state["roots"])
    if step >= start and (step - start) % inverse_interval == 0:
        fresh = {key: inverse_root(factor, epsilon) for key, factor in factors.items()}
        roots |= {key: root for key, root in fresh.items() if root is not None}
    weight = 1.0 - beta2 if beta2 < 1 else 1.0
    mass = beta2 * state["mass"] + weight  # 1 - β₂ᵗ
    new, velocity, square = {}, {}, {}
    for name, w in params.items():
        g = grads[name] + (weight_decay * w if w.ndim > 1 else 0.0)
        old = state["square"][name]
        square[name] = old + g**2 if graft == "adagrad" else beta2 * old + weight * g**2
        corrected = square[name] / mass if graft == "adam" else square[name]
        d = s = g if graft == "sgd" else g / (np.sqrt(corrected) + 1e-8)
        if matrix(g).ndim == 2:
            whole, p = matrix(g), np.zeros_like(matrix(g))
            for number, place in enumerate(cut(whole, block_size)):
                block, left, right = whole[place], (name, number, "left"), (name, number, "right")
                factors[left] = beta2 * factors.get(left, 0.0) + weight * block @ block.T  # [G] algorithm 1: L
                factors[right] = beta2 * factors.get(right, 0.0) + weight * block.T @ block  # [G] algorithm 1: R
                l_root, r_root = roots.get(left, np.eye(block.shape[0])), roots.get(right, np.eye(block.shape[1]))
                p[place] = l_root @ block @ r_root  # [G] algorithm 1: L^(-1/4) G R^(-1/4)
            norm = np.linalg.norm(p)
            if step >= start and norm > 0:
                d = (np.linalg.norm(s) / norm * p).reshape(w.shape)  # [A] algorithm 2, layer by layer
        velocity[name] = v = momentum * state["velocity"][name] + d
        new[name] = w - lr * (d + momentum * v if nesterov else v)
    return new, {"factors": factors, "roots": roots, "square": square, "mass": mass, "velocity": velocity}
