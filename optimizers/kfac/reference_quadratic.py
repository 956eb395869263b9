"""Specification of K-FAC's steps by the exact quadratic model, in float64 NumPy; [M] as in reference.py.

    M(-α d - μ v) = h - (α, μ) · (⟨∇h, d⟩, ⟨∇h, v⟩) + ½ (α, μ) B (α, μ)ᵀ,  B = [uᵀ (F + λ I) w for u, w in (d, v)]

d is the preconditioned gradient, v the last step. F is the covariance of the samples' gradients, with labels drawn from
the model, over all covered parameters together. h includes the L2 term, whose matrix is added to B.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from suite.contract import Layer
from suite.optimizers.kfac import Settings

Tree = dict[str, np.ndarray]
Tap = tuple[np.ndarray, np.ndarray]
Taps = Mapping[str, Tap | list[Tap]]
Unfold = Callable[[np.ndarray, Layer], np.ndarray]


def multiply_gradients(
    taps: Taps, weight: np.ndarray, layers: dict[str, Layer], direction: Tree, unfold: Unfold
) -> np.ndarray:
    """⟨gᵢ, v⟩ (N,) of each sample's own gradient gᵢ; 0 for samples without weight."""
    products = np.zeros(len(weight))
    for name, tap in taps.items():
        layer = layers[name]
        v, *bias = (direction[parameter] for parameter in layer.parameters)
        for x, dy in tap if isinstance(tap, list) else [tap]:
            for n in np.flatnonzero(weight):
                g = dy[n] / weight[n]
                if layer.kind == "batchnorm":
                    g, normalised = g.reshape(len(g), -1), x[n].reshape(len(g), -1)
                    products[n] += (g * (normalised * v[:, None] + bias[0][:, None])).sum()
                elif layer.kind == "embedding":
                    products[n] += (g * v[x[n]]).sum()
                else:
                    matrix = np.moveaxis(v, 1, -1).reshape(len(v), -1)
                    outputs = unfold(x[n], layer) @ np.hstack([matrix, *(b[:, None] for b in bias)]).T
                    g = g.reshape(len(g), -1).T if layer.kind == "conv2d" else g.reshape(-1, g.shape[-1])
                    products[n] += (g * outputs).sum()
    return products


def move_parameters(
    params: Tree,
    grads: Tree,
    direction: Tree,
    state: dict[str, Any],
    settings: Settings,
    layers: dict[str, Layer],
    weight: np.ndarray,
    look: Callable[[Tree, str], tuple[float, Tree, Taps, float]],
    unfold: Unfold,
    *,
    adapts: bool,
) -> tuple[Tree, Tree, float]:
    """Return the covered parameters after the step, the step, and λ.

    Args:
        params: by name.
        grads: ∇h, with the L2 term.
        direction: d.
        state: of the optimizer.
        settings: of the optimizer.
        layers: that are preconditioned.
        weight: of the samples, (N,).
        look: parameters and labels ("given" or "sampled") to mean loss, gradients, taps, and the number of the loss's
            terms, such as words.
        unfold: `reference.unfold_inputs`.
        adapts: whether λ changes in this step.
    """
    covered = [name for layer in layers.values() for name in layer.parameters]
    damping, decay = state["damping"] or settings.damping, settings.weight_decay
    pair = [{name: tree[name] for name in covered} for tree in (direction, state["velocity"])]
    _, _, taps, count = look(params, "sampled")
    rows = np.stack([multiply_gradients(taps, weight, layers, v, unfold) for v in pair])
    model = rows * weight @ rows.T / count
    for i, one in enumerate(pair):
        for j, other in enumerate(pair):
            model[i, j] += sum(
                (damping * weight.sum() / count + decay * (one[name].ndim > 1)) * np.vdot(one[name], other[name])
                for name in covered
            )
    slopes = np.array([sum(np.vdot(grads[name], v[name]) for name in covered) for v in pair])
    if np.linalg.det(model) > np.finfo(float).eps * model[0, 0] * model[1, 1]:
        coefficients = np.linalg.solve(model, slopes)  # [M] section 7
    else:  # there is no last step
        coefficients = np.array([slopes[0] / model[0, 0], 0.0])  # [M] section 6.4
    step = {name: coefficients[0] * pair[0][name] + coefficients[1] * pair[1][name] for name in covered}
    new = {name: params[name] - step[name] for name in covered}
    if adapts:  # [M] section 6.5

        def loss(at: Tree) -> float:
            return look(at, "given")[0] + 0.5 * decay * sum((at[n] ** 2).sum() for n in covered if at[n].ndim > 1)

        unclipped = look(params, "given")[1]
        unclipped = {name: unclipped[name] + decay * (params[name].ndim > 1) * params[name] for name in covered}
        slopes = np.array([sum(np.vdot(unclipped[name], v[name]) for name in covered) for v in pair])
        predicted = slopes @ coefficients - 0.5 * coefficients @ model @ coefficients
        ratio = (loss(params) - loss(params | new)) / predicted
        factor = 0.95**5
        damping *= factor if ratio > 0.75 else 1.0 if ratio >= 0.25 else 1.0 / factor
    return new, step, damping
