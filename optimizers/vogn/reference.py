"""Specification of VOGN in float64 NumPy, one sample at a time: lines of algorithm 1 in arXiv:1906.02506.

Taps are in torch's layout: {layer: (x, dy)}, dy the gradient of the summed loss, which holds the sample's weight once;
[(x, dy), …] where a layer is called more than once, whose gradients add up.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from suite import stream
from suite.contract import Layer
from suite.optimizers.vogn import Settings

Tree = dict[str, np.ndarray]
Tap = tuple[np.ndarray, np.ndarray]
Taps = Mapping[str, Tap | list[Tap]]


def init(params: Tree) -> dict[str, Any]:
    """Line 1; s is started by the first batch. `first` and `second` are Adam's, for what no layer describes."""
    names = ("momentum", "curvature", "first", "second")
    return {state: {name: np.zeros_like(value) for name, value in params.items()} for state in names}


def compute_constants(step: int, samples: int, settings: Settings) -> tuple[float, float, float]:
    """N, τ and δ̃ (line 2); τ warms up as section 3 describes."""
    n = settings.augmentation * samples
    tau, start, warmup = settings.tempering, settings.tempering_start, settings.tempering_warmup
    tau = start + (tau - start) * min(1.0, step / warmup) if warmup else tau
    return n, tau, tau * settings.prior_precision / n


def forward_params(
    params: Tree,
    state: dict[str, Any],
    settings: Settings,
    *,
    key: tuple[int, int],
    samples: int,
    layers: dict[str, Layer],
    draw: int = 0,
    **_: Any,
) -> Tree:
    """Lines 8-9: the weights of one draw; the first step is made at the mean."""
    if key[1] == 0:
        return params
    n, _tau, delta = compute_constants(key[1], samples, settings)
    names = {name for layer in layers.values() if layer.kind != "batchnorm" for name in layer.parameters}
    drawn = dict(params)
    for name in names:
        index = np.arange(params[name].size)
        noise = stream.normal(np, key, f"{name}/{draw}", index, kind=np.float64).reshape(params[name].shape)
        drawn[name] = params[name] + noise / np.sqrt(n * (state["curvature"][name] + delta + settings.damping))
    return drawn


def compute_sample_gradients(layer: Layer, x: np.ndarray, dy: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    """One sample's gradients of a layer's parameters, weight first."""
    if layer.kind == "batchnorm":
        return [(dy * x).reshape(len(dy), -1).sum(1), dy.reshape(len(dy), -1).sum(1)]
    weight = np.zeros(shape)
    if layer.kind == "embedding":
        for row, slope in zip(x.reshape(-1), dy.reshape(-1, shape[1]), strict=True):
            weight[row] += slope
        return [weight]
    if layer.kind == "linear":
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return [dy.T @ x, dy.sum(0)]
    x = np.pad(x, ((0, 0), (layer.padding,) * 2, (layer.padding,) * 2))
    for i, j in np.ndindex(*dy.shape[1:]):
        top, left = i * layer.stride, j * layer.stride
        weight += dy[:, i, j, None, None, None] * x[:, top : top + layer.kernel, left : left + layer.kernel]
    return [weight, dy.sum((1, 2))]


def average_squared_gradients(taps: Taps, weight: np.ndarray, layers: dict[str, Layer], params: Tree) -> Tree:
    """ĥ, lines 10 and 12: the weighted mean over samples of the squares of each one's own gradient."""
    means = {name: np.zeros_like(value) for name, value in params.items()}
    for name, tap in taps.items():
        layer, calls = layers[name], tap if isinstance(tap, list) else [tap]
        shape = params[layer.parameters[0]].shape
        for n in np.flatnonzero(weight):
            of_calls = zip(
                *(compute_sample_gradients(layer, x[n], dy[n] / weight[n], shape) for x, dy in calls), strict=True
            )
            for parameter, parts in zip(layer.parameters, of_calls, strict=False):  # a layer may have no bias
                means[parameter] += weight[n] / weight.sum() * np.sum(parts, 0) ** 2
    return means


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
    samples: int,
    seed: int = 0,
    evaluate: Callable[[Tree], Tree] | None = None,
    tapped: Callable[[Tree], Taps] | None = None,
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step from the gradients and taps of the first draw; returns new parameters and state."""
    _n, tau, delta = compute_constants(step, samples, settings)
    g, h, k, beta2 = (
        dict(grads),
        average_squared_gradients(taps, weight, layers, params),
        settings.draws,
        settings.beta2,
    )
    for draw in range(1, k):
        assert evaluate and tapped
        drawn = forward_params(params, state, settings, key=(seed, step), draw=draw, samples=samples, layers=layers)
        more, squared = evaluate(drawn), average_squared_gradients(tapped(drawn), weight, layers, params)
        g, h = {n: g[n] + more[n] for n in g}, {n: h[n] + squared[n] for n in h}
    g, h = {n: value / k for n, value in g.items()}, {n: value / k for n, value in h.items()}  # line 14
    normal = {name for layer in layers.values() if layer.kind == "batchnorm" for name in layer.parameters}
    covered = {name for layer in layers.values() for name in layer.parameters}
    new, new_params = {name: dict(tree) for name, tree in state.items()}, dict(params)
    for name in covered & params.keys():
        prior = 0.0 if name in normal else delta
        m = settings.momentum * state["momentum"][name] + g[name] + prior * params[name]  # 17
        s = h[name] if step == 0 else (1 - tau * beta2) * state["curvature"][name] + beta2 * h[name]  # 18
        new["momentum"][name], new["curvature"][name] = m, s
        new_params[name] = params[name] - settings.lr * m / (s + delta + settings.damping)  # 19
    for name in params.keys() - covered:
        apply_adam(name, g[name], new_params, new, settings, step)
    return new_params, new


def apply_adam(name: str, g: np.ndarray, params: Tree, state: dict[str, Any], settings: Settings, step: int) -> None:
    """Adam's step of a parameter that no layer describes; changes `params` and `state`."""
    beta1, beta2, eta = settings.fallback_beta1, settings.fallback_beta2, settings.fallback_ratio * settings.lr
    state["first"][name] = first = beta1 * state["first"][name] + (1 - beta1) * g
    state["second"][name] = second = beta2 * state["second"][name] + (1 - beta2) * g**2
    scale = np.sqrt(second / (1 - beta2 ** (step + 1))) + settings.fallback_epsilon
    params[name] = params[name] - eta * first / (1 - beta1 ** (step + 1)) / scale
