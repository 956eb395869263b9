"""Specification of K-FAC in float64 NumPy, one sample at a time.

Equation numbers: [M] Martens and Grosse 2015 (arXiv:1503.05671), [G] Grosse and Martens 2016 (arXiv:1602.01407),
[O] Osawa et al. 2020 (arXiv:2002.06015), [E] Eschenhagen et al. 2023 (arXiv:2311.00636). Taps are in torch's layout:
{layer: (x, dy)}, dy the gradient of the summed loss, or [(x, dy), …] where a layer is called more than once. Factors
are per example: no batch size in them, so that damping means the same at any batch size.

Positions of a sample (windows, words) and calls of a shared layer are treated alike: with T of them over all calls, A
sums over them and G takes their mean, as if they were independent ([G] eq. 28-29; K-FAC-expand in [E]). Batch
normalisation, whose blocks are of the sample's own gradient, sums over them first.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from suite.contract import Layer
from suite.optimizers._base.reference import step_adamw
from suite.optimizers.kfac import Settings
from suite.optimizers.kfac.reference_quadratic import move_parameters

Tree = dict[str, np.ndarray]
Tap = tuple[np.ndarray, np.ndarray]
Taps = Mapping[str, Tap | list[Tap]]


def init(params: Tree) -> dict[str, Any]:
    """Zero factors of zero weight, zero velocity, AdamW's moments zero."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    averages = {"velocity": zeros, "first": zeros, "second": zeros}
    return {"factors": {}, "mass": {}, "inverses": {}, "past": {}, "timing": {}, "kept": 0, "damping": None} | averages


def unfold_inputs(x: np.ndarray, layer: Layer) -> np.ndarray:
    """Return the (T, in) inputs of one sample, whose products with dy make its gradient; a 1 is appended for a bias.

    A convolution's are its windows, in the order (row, column, channel).
    """
    if layer.kind == "conv2d":
        k, s, p = layer.kernel, layer.stride, layer.padding
        x = np.pad(x, ((0, 0), (p, p), (p, p)))
        height, width = ((x.shape[1] - k) // s + 1, (x.shape[2] - k) // s + 1)
        places = [(i * s, j * s) for i in range(height) for j in range(width)]
        x = np.stack([x[:, i : i + k, j : j + k].transpose(1, 2, 0).ravel() for i, j in places])
    x = x.reshape(-1, x.shape[-1])
    return np.hstack([x, np.ones((len(x), 1))]) if len(layer.parameters) > 1 else x


def compute_statistics(
    taps: Taps, weight: np.ndarray, layers: dict[str, Layer], params: Tree, *, batchnorm: str = "unit"
) -> dict[str, np.ndarray]:
    """Mean over samples of each layer's factors."""
    sums: dict[str, Any] = {}

    def add(name: str, value: np.ndarray) -> None:
        sums[name] = sums.get(name, 0.0) + value / weight.sum()

    for name, tap in taps.items():
        layer, calls = layers[name], tap if isinstance(tap, list) else [tap]
        for n, w in enumerate(weight):
            if w == 0:
                continue
            sample = [(x[n], dy[n] / w) for x, dy in calls]  # its inputs, and gradients (…,) of its own loss
            if layer.kind == "batchnorm":
                flat = [(x.reshape(len(x), -1), g.reshape(len(g), -1)) for x, g in sample]  # (C, positions of a call)
                pair = np.sum([np.stack([(g * x).sum(1), g.sum(1)], 1) for x, g in flat], 0)  # (C, 2)
                unit = batchnorm == "unit"
                add(name, w * (pair[:, :, None] * pair[:, None, :] if unit else np.outer(pair.T, pair.T)))  # [O] eq. 15
                continue
            convolved = layer.kind == "conv2d"
            g = np.vstack([g.reshape(len(g), -1).T if convolved else g.reshape(-1, g.shape[-1]) for _, g in sample])
            add(f"{name}/out", w * g.T @ g / len(g))  # (T, out) to Γ, [G] eq. 29
            if layer.kind == "embedding":
                ids, vocabulary = np.hstack([x.ravel() for x, _ in sample]), params[layer.parameters[0]].shape[0]
                add(f"{name}/in", w * np.bincount(ids, minlength=vocabulary))  # one-hot inputs: diagonal
            else:
                a = np.vstack([unfold_inputs(x, layer) for x, _ in sample])
                add(f"{name}/in", w * a.T @ a)  # (T, in) to Ω, [G] eq. 28
    return sums


def mix_statistics(
    state: dict[str, Any], new: Tree, decay: float, names: list[str], alpha: float | None = None
) -> None:
    """Mix statistics into the factors; with `alpha`, set their intervals by [O] algorithm 2."""
    for name in names:
        if not np.isfinite(new[name]).all():
            state["kept"] += 1
        else:
            mass, old = state["mass"].get(name, 0.0), state["factors"].get(name, 0.0)
            state["mass"][name] = decay * mass + 1 - decay  # 1 - decay**k: corrects the zero start
            now = (decay * mass * old + (1 - decay) * new[name]) / state["mass"][name]
            state["factors"] = state["factors"] | {name: now}
        if alpha is not None and name in state["factors"]:
            now, zero = state["factors"][name], np.zeros_like(state["factors"][name])
            last, before = state["past"].get(name, (zero, zero))
            sound = np.isfinite(new[name]).all()
            similar = [sound and np.linalg.norm(now - x) < alpha * np.linalg.norm(x) for x in (last, before)]
            _, interval, older = state["timing"].get(name, (0, 1, 1))
            chosen = max(1, interval // 2) if not similar[0] else interval if not similar[1] else interval + older
            state["timing"] = state["timing"] | {name: (chosen, chosen, interval)}  # steps to wait; intervals
            state["past"] = state["past"] | {name: (now, last)}


def invert_factors(
    state: dict[str, Any], layers: dict[str, Layer], damping: float, split: str
) -> dict[str, np.ndarray]:
    """Damped inverses of the factors, diagonal ones as vectors."""
    inverses, factors = {}, state["factors"]
    for name, layer in layers.items():
        if layer.kind == "batchnorm":
            if (fisher := factors.get(name)) is not None and fisher.ndim == 2:
                inverses[name] = np.linalg.inv(fisher + damping * np.eye(len(fisher)))  # [O] eq. 14, all units at once
            continue
        a, g = factors[f"{name}/in"], factors[f"{name}/out"]
        mean_a, mean_g = (a.sum() if a.ndim == 1 else np.trace(a)) / len(a), np.trace(g) / len(g)
        pi = np.sqrt(max(mean_a, 1e-12) / max(mean_g, 1e-12))  # [M] eq. 31
        pi = 1.0 if split == "equal" else pi
        ridge_a, ridge_g = pi * np.sqrt(damping), np.sqrt(damping) / pi
        inverses[f"{name}/in"] = 1.0 / (a + ridge_a) if a.ndim == 1 else np.linalg.inv(a + ridge_a * np.eye(len(a)))
        inverses[f"{name}/out"] = np.linalg.inv(g + ridge_g * np.eye(len(g)))
    return inverses


def precondition_gradients(
    grads: Tree, state: dict[str, Any], inverses: Tree, layers: dict[str, Layer], damping: float
) -> Tree:
    """F⁻¹ g, layer by layer; gradients of other parameters stay as they are."""
    direction = dict(grads)
    for name, layer in layers.items():
        w, *bias = layer.parameters
        if layer.kind == "batchnorm":
            pair = np.stack([grads[w], grads[bias[0]]])
            if name in inverses:
                direction[w], direction[bias[0]] = (inverses[name] @ pair.ravel()).reshape(pair.shape)
            else:  # [O] eq. 17
                fisher = state["factors"][name] + damping * np.eye(2)
                direction[w], direction[bias[0]] = np.linalg.solve(fisher, pair.T[:, :, None])[:, :, 0].T
            continue
        matrix = np.moveaxis(grads[w], 1, -1)
        shape, matrix = matrix.shape, matrix.reshape(len(matrix), -1)
        if layer.kind == "embedding":
            direction[w] = inverses[f"{name}/in"][:, None] * matrix @ inverses[f"{name}/out"]
            continue
        a, g = inverses[f"{name}/in"], inverses[f"{name}/out"]
        full = g @ np.hstack([matrix, *(grads[b][:, None] for b in bias)]) @ a  # [M] eq. 21: G⁻¹ ∇W A⁻¹
        direction[w] = np.moveaxis(full[:, : matrix.shape[1]].reshape(shape), -1, 1)
        for b in bias:
            direction[b] = full[:, -1]
    return direction


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
    look: Callable[[Tree, str], tuple[float, Tree, Taps, float]] | None = None,
    **_: Any,
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state. `look`: see `reference_quadratic.move_parameters`."""
    momentum, damping = settings.momentum, state["damping"] or settings.damping
    state = {**state, "mass": dict(state["mass"]), "inverses": dict(state["inverses"])}
    update_factors(
        state, compute_statistics(taps, weight, layers, params, batchnorm=settings.batchnorm), settings, layers, step
    )
    covered = {name for layer in layers.values() for name in layer.parameters}
    new, first, second = {}, dict(state["first"]), dict(state["second"])
    if settings.fallback_ratio:
        for name in params.keys() - covered:
            moments = first[name], second[name]
            new[name], (first[name], second[name]) = step_adamw(params[name], grads[name], moments, settings, step)
    decay = settings.weight_decay
    grads = {n: g + (decay * params[n] if g.ndim > 1 else 0.0) for n, g in grads.items() if n not in new}
    if settings.momentum_on == "gradient":
        grads = {name: momentum * state["velocity"][name] + (1 - momentum) * g for name, g in grads.items()}
    direction = precondition_gradients(grads, state, state["inverses"], layers, damping)
    if settings.kl_clip:  # ν = min(1, √(κ / lr² Σ ⟨g, d⟩)) over the covered parameters
        length = settings.lr**2 * sum(np.vdot(grads[name], direction[name]) for name in covered)
        nu = min(1.0, np.sqrt(settings.kl_clip / length))
        direction |= {name: nu * direction[name] for name in covered}
    preconditioned = direction
    if settings.momentum_on == "direction":
        velocity = direction = {name: momentum * state["velocity"][name] + d for name, d in direction.items()}
    else:
        velocity = grads
    if settings.quadratic_model:
        assert look
        adapts = (step + 1) % 5 == 0
        fitted = move_parameters(
            params, grads, preconditioned, state, settings, layers, weight, look, unfold_inputs, adapts=adapts
        )
        new, velocity, state["damping"] = new | fitted[0], velocity | fitted[1], fitted[2]
    new |= {name: params[name] - settings.lr * d for name, d in direction.items() if name not in new}
    if settings.rescale:  # [O] eq. 24: norm √(2 · d_out) after each step
        for layer in layers.values():
            if layer.kind in ("linear", "conv2d"):
                w = new[layer.parameters[0]]
                new[layer.parameters[0]] = np.sqrt(2.0 * len(w)) * w / (np.linalg.norm(w) + 1e-9)
    timing = {name: (wait - 1, *intervals) for name, (wait, *intervals) in state["timing"].items()}
    return new, state | {"velocity": velocity, "first": first, "second": second, "timing": timing}


def update_factors(state: dict[str, Any], new: Tree, settings: Settings, layers: dict[str, Layer], step: int) -> None:
    """Mix the statistics that are due into the factors, and invert the factors that are due; changes the state."""
    stale = settings.stale
    due = [name for name in new if state["timing"].get(name, (0,))[0] <= 0]  # [O] algorithm 1
    if stale or step % settings.factor_interval == 0:
        alpha = settings.stale_alpha if stale else None
        mix_statistics(state, new, settings.factor_decay, due if stale else list(new), alpha)
    damping = state["damping"] or settings.damping
    current = invert_factors(state, layers, damping, settings.damping_split)
    if stale or step <= settings.inverse_warmup or step % settings.inverse_interval == 0:
        state["inverses"] |= {name: value for name, value in current.items() if not stale or name in due}
    # diagonals cost nothing to invert and are never stale
    diagonal = {f"{name}/in" for name, layer in layers.items() if layer.kind == "embedding"}
    state["inverses"] |= {name: current[name] for name in diagonal}
