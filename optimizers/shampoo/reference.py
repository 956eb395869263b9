"""Specification of Shampoo in float64 NumPy, one block and one side at a time.

Sources: [G] Gupta, Koren and Singer 2018 (arXiv:1802.09568), [A] Agarwal et al. 2020 (arXiv:2002.11803).
"""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from suite.optimizers.shampoo import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """No statistics, no roots, none under way, zero velocity."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"factors": {}, "roots": {}, "pending": {}, "square": zeros, "mass": 0.0, "velocity": zeros}


def merge_sides(value: np.ndarray, reshape: str, merge_size: int) -> np.ndarray:
    """Without sides of length 1: as it is, its last sides merged, or first side against the rest."""
    sides = [side for side in value.shape if side > 1]
    merged = sides[-1:]
    for side in reversed(sides[:-1]):
        fits = side * merged[0] <= merge_size
        merged = [side * merged[0], *merged[1:]] if fits else [side, *merged]
    if reshape == "matrix" or (reshape == "merge" and len(merged) < 2):  # what has two sides never becomes a vector
        merged = [sides[0], -1] if len(sides) > 1 else sides
    return value.reshape(sides if reshape == "none" else merged)


def locate_blocks(shape: tuple[int, ...], sides: list[int], block_size: int) -> list[tuple[slice, ...]]:
    """Places of a tensor's blocks, row by row, the last ones smaller; only these sides are cut."""
    places = []
    for number, side in enumerate(shape):
        count = int(np.ceil(side / block_size)) if number in sides else 1
        length = int(np.ceil(side / count))
        places.append([slice(start, start + length) for start in range(0, side, length)])
    return list(itertools.product(*places))


def unfold_side(side: int, block: np.ndarray) -> np.ndarray:
    """A block as the matrix of one side against all others."""
    return np.moveaxis(block, side, 0).reshape(block.shape[side], -1)


def inverse_root(a: np.ndarray, epsilon: float, order: int) -> np.ndarray | None:
    """(A + ε λmax I)^(-1/order); None where there is none."""
    values, vectors = np.linalg.eigh(a)
    values = np.maximum(values, 0.0)
    noise = np.finfo(np.float64).eps * max(np.linalg.norm(values) / len(values), 4.0 * values[-1])  # made by rounding
    values = values + epsilon * values[-1]
    return (vectors * values ** (-1.0 / order)) @ vectors.T if values[0] > noise else None


def as_long(direction: np.ndarray, step: np.ndarray, spans: Iterable[Any]) -> np.ndarray:
    """Give the direction the length of the step in each of these places; [A] algorithm 2, layer by layer."""
    result = step.copy()
    for place in spans:
        if norm := np.linalg.norm(direction[place]):
            result[place] = np.linalg.norm(step[place]) / norm * direction[place]
    return result


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    settings: Settings,
    *,
    step: int,
    tables: Collection[str] = (),
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step, counted from 0; returns new parameters and state."""
    beta2, graft, interval, lag = settings.beta2, settings.graft, settings.inverse_interval, settings.lag
    factors, roots, pending = dict(state["factors"]), dict(state["roots"]), dict(state["pending"])
    weight = 1.0 - beta2 if beta2 < 1 else 1.0
    gradients, tensors, factored = {}, {}, {}
    for name, w in params.items():  # first this step's statistics ([G] algorithm 1: L_t is of G_1 to G_t)
        gradients[name] = g = grads[name] + (settings.weight_decay * w if w.ndim > 1 else 0.0)
        whole = merge_sides(g, settings.reshape, settings.merge_size)
        sides = [side for side, length in enumerate(whole.shape) if length <= (settings.max_size or np.inf)]
        skipped = (settings.large == "skip" and len(sides) < whole.ndim) or (name in tables and not settings.embeddings)
        if whole.ndim > 1 and sides and not skipped:
            tensors[name], factored[name] = whole, sides
            for number, place in enumerate(locate_blocks(whole.shape, sides, settings.block_size)):
                for side in sides:  # [G] algorithm 2: H^i ← H^i + G^(i)
                    key, x = (name, number, side), unfold_side(side, whole[place])
                    factors[key] = beta2 * factors.get(key, 0.0) + weight * x @ x.T
    since = step - settings.start_preconditioning
    blocks = sorted({(name, number) for name, number, _ in factors})
    due = set(blocks) if since >= 0 and since % interval == 0 else set()
    if settings.stagger and since > 0:  # one after another, over the interval
        due = {block for turn, block in enumerate(blocks) if (since - 1 - turn) % interval == 0}
    pending[step + lag] = {  # then the roots that are due; [G] algorithm 2: the exponent is -1 / (2 k) with k factors
        key: inverse_root(factor, settings.epsilon, settings.exponent or 2 * len(factored[key[0]]))
        for key, factor in factors.items()
        if key[:2] in due
    }
    roots |= {key: root for key, root in pending.pop(step, {}).items() if root is not None}
    mass = beta2 * state["mass"] + weight  # 1 - β₂ᵗ
    new, velocity, square = {}, {}, {}
    for name, w in params.items():
        g, old = gradients[name], state["square"][name]
        square[name] = old + g**2 if graft == "adagrad" else beta2 * old + weight * g**2
        corrected = square[name] / mass if graft == "adam" else square[name]
        d = s = g if graft == "sgd" else g / (np.sqrt(corrected) + 1e-8)
        if name in tensors:
            whole = tensors[name]
            p = np.zeros_like(whole)
            for number, place in enumerate(locate_blocks(whole.shape, factored[name], settings.block_size)):
                turned = whole[place]
                for side in factored[name]:  # [G] algorithm 2: G ×_i (H^i)^(-1 / 2k)
                    root = roots.get((name, number, side), np.eye(turned.shape[side]))
                    turned = np.moveaxis(np.tensordot(root, turned, (1, side)), 0, side)
                p[place] = turned
            if since >= lag:
                places = locate_blocks(whole.shape, factored[name], settings.block_size)
                spans = places if settings.graft_blocks else [...]
                d = as_long(p, s.reshape(p.shape), spans).reshape(w.shape)
        velocity[name] = v = settings.momentum * state["velocity"][name] + d
        new[name] = w - settings.lr * (d + settings.momentum * v if settings.nesterov else v)
    return new, {
        "factors": factors,
        "roots": roots,
        "pending": pending,
        "square": square,
        "mass": mass,
        "velocity": velocity,
    }
