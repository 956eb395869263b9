"""Sums over samples of a aᵀ, â and ĝ of each covered layer, in jax."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import widen_floats
from suite.optimizers.kbfgs.plan import KBFGSPlan

Tree = dict[str, Array]
Taps = Mapping[tuple[str, int], tuple[Array, Array]]


def sum_statistics(plan: KBFGSPlan, taps: Taps, weight: Array) -> Tree:
    """Sums over samples of a aᵀ, â and ĝ, by `<layer>/factor`, `<layer>/middle` and `<layer>/slope`.

    Args:
        plan: which layers are covered.
        taps: of one backward pass: a layer's input, and the gradient of the summed weighted loss by its output.
        weight: of the samples, (N,).
    """
    factors = {
        f"{name}/factor": _factor(x, weight, plan.inputs[plan.place[name]])
        for name, (x, _) in _positions(plan, taps).items()
    }
    return sum_means(plan, taps, weight) | factors


def sum_means(plan: KBFGSPlan, taps: Taps, weight: Array) -> Tree:
    """Sums over samples of â and ĝ alone, which are all that the second pass needs; see `sum_statistics`."""
    statistics: Tree = {}
    for name, (x, dy) in _positions(plan, taps).items():
        statistics[f"{name}/middle"] = _middle(x, weight, plan.inputs[plan.place[name]])
        statistics[f"{name}/slope"] = dy.mean(1).sum(0)  # dy holds the samples' weights already
    return statistics


def _positions(plan: KBFGSPlan, taps: Taps) -> dict[str, tuple[Array, Array]]:
    """Of each covered layer x (N, T, in) and dy (N, T, out), the positions of its calls one after another."""
    calls: dict[str, list[tuple[Array, Array]]] = {}
    for (name, _), pair in taps.items():
        if name in plan.place:
            x, dy = (widen_floats(value).reshape(len(value), -1, value.shape[-1]) for value in pair)
            calls.setdefault(name, []).append((x, dy))
    joined = {name: zip(*pairs, strict=True) for name, pairs in calls.items()}
    return {name: (_joined(x), _joined(dy)) for name, (x, dy) in joined.items()}


def _joined(calls: tuple[Array, ...]) -> Array:
    """Return the positions (N, T, …) of one call as they are, which compiles to nothing, or those of several."""
    return calls[0] if len(calls) == 1 else jnp.concatenate(calls, 1)


def _middle(x: Array, weight: Array, size: int) -> Array:
    """Σ â (size,) of a layer; its last entry belongs to the bias, if there is one."""
    middle = (weight[:, None] * x.mean(1)).sum(0)
    return jnp.concatenate([middle, weight.sum()[None]]) if size > x.shape[-1] else middle


def _factor(x: Array, weight: Array, size: int) -> Array:
    """Σ a aᵀ (size, size) of a layer."""
    root = jnp.sqrt(weight)[:, None, None]
    flat = x * root
    if size > x.shape[-1]:
        flat = jnp.concatenate([flat, jnp.broadcast_to(root, (*flat.shape[:2], 1))], 2)
    rows = flat.reshape(-1, size)
    return rows.T @ rows
