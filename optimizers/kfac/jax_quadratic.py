"""Exact quadratic model of K-FAC's step, in jax; reference.py has the formulas."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array, lax

from suite.contract import Layer
from suite.optimizers.kfac.plan import ADAPTATION, KFACPlan

Tree = dict[str, Array]
Taps = Mapping[tuple[str, int], tuple[Array, Array]]


def sum_products(plan: KFACPlan, directions: Sequence[Tree], taps: Taps, weight: Array) -> Tree:
    """Sums over samples of ⟨gᵢ, v⟩ and their products, gᵢ the gradient of a sample's own loss, for directions v.

    Args:
        plan: its layers.
        directions: by parameter.
        taps: of all layers.
        weight: of the samples, (N,).

    Returns:
        `gram`, Σ ⟨gᵢ, v⟩ ⟨gᵢ, u⟩ (directions, directions); `share`, the samples' weight.
    """
    rows = jnp.zeros((len(directions), len(weight)), weight.dtype)
    for (name, _), (x, dy) in taps.items():
        if layer := plan.layers.get(name):
            own = [[v[parameter] for parameter in layer.parameters] for v in directions]
            rows += jnp.stack([multiply_gradients(layer, x, dy, *matrices) for matrices in own])
    inverse = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)  # dy holds the weight once
    return {"gram": rows * inverse @ rows.T, "share": weight.sum()}


def multiply_gradients(layer: Layer, x: Array, dy: Array, weight: Array, bias: Array | None = None) -> Array:
    """Each sample's ⟨∇W̃, V⟩ (N,): dy times what the layer makes of its input with V as its weights."""
    if layer.kind == "embedding":
        y = weight[x]
    elif layer.kind == "batchnorm":
        y = x * weight
    elif layer.kind == "conv2d":
        pads, layout = [(layer.padding, layer.padding)] * 2, ("NHWC", "OIHW", "NHWC")
        strides = (layer.stride, layer.stride)
        y = lax.conv_general_dilated(x.astype(weight.dtype), weight, strides, pads, dimension_numbers=layout)
    else:
        y = x.astype(weight.dtype) @ weight.T
    y = y if bias is None else y + bias
    return (y * dy).reshape(len(dy), -1).sum(1)


def fit_step(model: Array, slopes: Array) -> Array:
    """Return the (α, μ) that minimise ½ (α, μ) B (α, μ)ᵀ - (α, μ) · slopes.

    Args:
        model: (2, 2), B for the direction and the last step.
        slopes: (2,), ⟨∇h, v⟩ of both.
    """
    a, b, c, (one, other) = model[0, 0], model[0, 1], model[1, 1], slopes
    tiny, determinant = jnp.finfo(model.dtype), a * c - b * b
    both = determinant > tiny.eps * a * c  # not before the first step
    determinant = jnp.where(both, determinant, 1.0)
    length = jnp.where(both, (c * one - b * other) / determinant, one / jnp.maximum(a, tiny.tiny))
    return jnp.stack([length, jnp.where(both, (a * other - b * one) / determinant, 0.0)])


def adapt_damping(damping: Array, fell: Array, promised: Array) -> Array:
    """Return λ times ωᵀ where the loss fell by more than 3/4 of what the model promised, λ / ωᵀ below 1/4."""
    ratio = fell / promised
    return jnp.where(ratio > 0.75, damping * ADAPTATION, jnp.where(ratio >= 0.25, damping, damping / ADAPTATION))
