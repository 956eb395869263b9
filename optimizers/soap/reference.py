"""Specification of SOAP in float64 NumPy: Vyas et al. 2024 (arXiv:2409.11321), algorithms 3 and 4, by their lines."""

from typing import Any

import numpy as np

from suite.optimizers.soap import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """No statistics, no bases, both moments zero; the first in the parameters' own coordinates."""
    flat = {name: np.zeros_like(merge_to_matrix(value)) for name, value in params.items()}
    return {"factors": {}, "bases": {}, "first": flat, "second": flat}


def merge_to_matrix(value: np.ndarray) -> np.ndarray:
    """First side against the rest, sides of length 1 left out; what has a single side is a vector."""
    sides = [side for side in value.shape if side > 1]
    return value.reshape(sides[0], -1) if len(sides) > 1 else value.reshape(-1)


def refresh_basis(p: np.ndarray, q: np.ndarray | None) -> np.ndarray | None:
    """A basis of P's eigenvectors: all anew, or one step on from Q (algorithm 4). Q itself where P is useless."""
    if not np.isfinite(p).all() or np.trace(p) / len(p) < np.finfo(p.dtype).tiny:
        return q
    if q is None:
        return np.linalg.eigh(p)[1]
    s = p @ q  # algorithm 4, line 2
    estimate = (q * s).sum(0)
    s = s + len(p) * np.finfo(p.dtype).eps * estimate.max() * q
    order = np.argsort(-estimate, kind="stable")  # as the official code sorts, with the columns put back afterwards
    return np.linalg.qr(s[:, order])[0][:, np.argsort(order)]  # algorithm 4, line 3


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, *, step: int, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step, counted from 0; returns new parameters and state."""
    beta1, beta2, max_size = settings.beta1, settings.beta2, settings.max_size
    factors, bases, since = dict(state["factors"]), dict(state["bases"]), step - settings.start_preconditioning
    if since >= 0 and since % settings.precondition_frequency == 0:  # line 14, before this step, not after the last
        for side, factor in factors.items():
            q = refresh_basis(factor, bases.get(side, np.eye(len(factor))) if since else None)
            bases |= {} if q is None else {side: q}  # lines 15 and 16
    new, first, second = {}, {}, {}
    for name, w in params.items():
        g = merge_to_matrix(grads[name])
        limit = min(max_size, *g.shape) if settings.one_sided and g.ndim > 1 else max_size
        kept = [g.ndim > 1 and side <= limit for side in g.shape]
        q_left, q_right = (bases.get((name, side), None) for side in ("left", "right"))

        def turn(x: np.ndarray, left: np.ndarray | None, right: np.ndarray | None) -> np.ndarray:
            x = x if left is None else left.T @ x
            return x if right is None else x @ right

        turned = turn(g, q_left, q_right)  # line 4
        first[name] = beta1 * state["first"][name] + (1.0 - beta1) * g  # line 5
        m = turn(first[name], q_left, q_right) / (1.0 - beta1 ** (step + 1))  # line 6
        second[name] = beta2 * state["second"][name] + (1.0 - beta2) * turned**2  # line 7
        n = m / (
            np.sqrt(second[name] / (1.0 - beta2 ** (step + 1))) + settings.epsilon
        )  # line 8, with ε outside the root
        n = turn(n, None if q_left is None else q_left.T, None if q_right is None else q_right.T)  # line 9
        decay = settings.weight_decay * w if w.ndim > 1 else 0.0
        new[name] = w - settings.lr * (n.reshape(w.shape) + decay)  # line 10, and decay as in AdamW
        if kept[0]:
            factors[name, "left"] = beta2 * factors.get((name, "left"), 0.0) + (1.0 - beta2) * g @ g.T  # line 12
        if kept[-1]:
            factors[name, "right"] = beta2 * factors.get((name, "right"), 0.0) + (1.0 - beta2) * g.T @ g  # line 13
    return new, {"factors": factors, "bases": bases, "first": first, "second": second}
