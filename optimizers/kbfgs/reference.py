"""Specification of K-BFGS in float64 NumPy, one sample at a time.

Sources: [G] Goldfarb, Ren and Bahamou 2020 (arXiv:2006.08877), algorithms 1 and 2; [C] the authors' code,
renyiryry/kbfgs_neurips2020_public, kbfgs_utils.py, where the paper leaves a detail open. Taps are {layer: (x, dy)}, dy
the gradient of the summed loss, or [(x, dy), …] where a layer is called more than once: each call is so many more
positions of a sample.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from suite.contract import Layer
from suite.optimizers.kbfgs import Settings

Tree = dict[str, np.ndarray]
Tap = tuple[np.ndarray, np.ndarray]
Taps = Mapping[str, Tap | list[Tap]]


def init(params: Tree) -> dict[str, Any]:
    """Zero averages."""
    return {"average": {name: np.zeros_like(value) for name, value in params.items()}, "layers": {}, "mass": 0.0}


def compute_statistics(tap: Tap | list[Tap], weight: np.ndarray, bias: bool) -> tuple[Any, Any, Any]:
    """One layer's mean(a aᵀ), summed over positions; its mean input â and mean slope ĝ, averaged over them."""
    calls = tap if isinstance(tap, list) else [tap]
    factor: Any = 0.0
    middle: Any = 0.0
    slope: Any = 0.0
    for n, w in enumerate(weight):
        a, g = (np.vstack([pair[end][n].reshape(-1, pair[end].shape[-1]) for pair in calls]) for end in (0, 1))
        a = np.hstack([a, np.ones((len(a), 1))]) if bias else a  # (T, in), as g is (T, out)
        factor = factor + w * a.T @ a / weight.sum()
        middle = middle + w * a.mean(0) / weight.sum()
        slope = slope + g.mean(0) / weight.sum()  # dy holds the weight already
    return factor, middle, slope


def apply_bfgs(h: np.ndarray, s: np.ndarray, y: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """[G] eq. 5, in the order of operations of its remark; the pair is skipped as in [C]."""
    curvature = s @ y
    if curvature <= 1e-4 * (s @ s) * np.linalg.norm(slope):
        return h
    hy, rho = h @ y, 1.0 / curvature
    new = h + (rho**2 * (y @ hy) + rho) * np.outer(s, s) - rho * (np.outer(s, hy) + np.outer(hy, s))
    return new if np.isfinite(new).all() else h


def double_damping(h: np.ndarray, s: np.ndarray, y: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Double damping, [G] algorithm 2: Powell's of s by H with μ₁ = 0.2, then of y by the identity with μ₂ = √λ."""
    hy = h @ y
    if s @ y < 0.2 * (y @ hy):
        theta = 0.8 * (y @ hy) / (y @ hy - s @ y)
        s = theta * s + (1.0 - theta) * hy
    if s @ y < ridge * (s @ s):
        theta = (1.0 - ridge) * (s @ s) / (s @ s - s @ y)
        y = theta * y + (1.0 - theta) * s
    return s, y


def update(
    params: Tree,
    grads: Tree,
    state: dict[str, Any],
    settings: Settings,
    *,
    step: int,
    taps: Taps,
    weight: np.ndarray,
    layers: dict[str, Layer],
    tapped: Callable[[Tree], Taps],
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step; `tapped` gives the taps of the same batch at other weights. Returns new parameters and state."""
    momentum, lr, wd = settings.momentum, settings.lr, settings.weight_decay
    grads = {name: g + (wd * params[name] if g.ndim > 1 else 0.0) for name, g in grads.items()}
    average = {name: momentum * state["average"][name] + (1.0 - momentum) * g for name, g in grads.items()}
    mass = settings.factor_decay * state["mass"] + 1.0 - settings.factor_decay  # corrects the zero start of A
    new = {name: value - lr * average[name] for name, value in params.items()}
    linear = {name: layer.parameters for name, layer in layers.items() if layer.kind == "linear"}
    after: dict[str, Any] = {}
    means: dict[str, Any] = {}
    for name, (w, *bias) in linear.items():
        factor, *means[name] = compute_statistics(taps[name], weight, bool(bias))
        after[name] = layer = with_factor(state["layers"].get(name, {}), factor, mass, settings)
        if step == 0:
            zeros = {"s": 0.0, "y": 0.0, "hg": np.eye(len(params[w]))}
            layer |= {"ha": np.linalg.inv(layer["a"])} | zeros
        together = np.hstack([average[w], *(average[b][:, None] for b in bias)])
        direction = layer["hg"] @ together @ layer["ha"]  # [G] algorithm 1: Hg ∇W Ha
        new[w] = params[w] - lr * direction[:, : params[w].shape[1]]
        new |= {b: params[b] - lr * direction[:, -1] for b in bias}
    again = tapped(new)
    for name, (w, *bias) in linear.items():
        _, *means_after = compute_statistics(again[name], weight, bool(bias))
        whole, moved = (np.hstack([p[w], *(p[b][:, None] for b in bias)]) for p in (params, new))
        update_inverses(after[name], whole, moved, means[name], means_after, settings)
    return new, {"average": average, "layers": after, "mass": mass}


def with_factor(layer: dict[str, Any], factor: np.ndarray, mass: float, settings: Settings) -> dict[str, Any]:
    """A layer's state with its averaged A + √λ I."""
    total = settings.factor_decay * layer.get("sum", 0.0) + (1.0 - settings.factor_decay) * factor
    return layer | {"sum": total, "a": total / mass + np.sqrt(settings.damping) * np.eye(len(factor))}


def update_inverses(
    layer: dict[str, Any], before: np.ndarray, after: np.ndarray, means: Any, means_after: Any, settings: Settings
) -> None:
    """Update a layer's Hg and Ha from [W b] before and after the step, and from its means (â, ĝ) there."""
    (middle, slope), (middle_after, slope_after), decay = means, means_after, settings.pair_decay
    layer["s"] = decay * layer["s"] + (1.0 - decay) * (before @ middle - after @ middle_after)
    layer["y"] = decay * layer["y"] + (1.0 - decay) * (slope - slope_after)
    pair = double_damping(layer["hg"], layer["s"], layer["y"], np.sqrt(settings.damping))
    layer["hg"] = apply_bfgs(layer["hg"], *pair, slope)
    acted = layer["ha"] @ middle  # "Hessian action", [G] §3
    layer["ha"] = apply_bfgs(layer["ha"], acted, layer["a"] @ acted, middle)
