"""Sums of squared per-sample gradients, layer by layer, in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.optimizers.vogn.plan import count_parts


def unfold_tap(layer: Layer, x: Array, dy: Array) -> tuple[Array, Array]:
    """A layer's tap as x (N, P, in) and dy (N, P, out), whose products, summed over P, are a sample's gradient.

    For an embedding x is (N, P), for batch normalisation both are (N, P, C).
    """
    n = len(dy)
    dy = dy.reshape(n, -1, dy.shape[-1])
    if layer.kind == "embedding":
        return x.reshape(n, -1), dy
    x = _windows(x.astype(dy.dtype), layer) if layer.kind == "conv2d" else x.astype(dy.dtype)
    return x.reshape(n, -1, x.shape[-1]), dy


def _windows(x: Array, layer: Layer) -> Array:
    """Windows of (N, H, W, C) as (N, places, C · k · k), in the order of a torch weight's columns."""
    k, s, p = layer.kernel, layer.stride, layer.padding
    x = jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
    height, width = (x.shape[1] - k) // s + 1, (x.shape[2] - k) // s + 1
    shifts = [(i, j) for i in range(k) for j in range(k)]
    windows = [x[:, i : i + s * height : s, j : j + s * width : s] for i, j in shifts]
    return jnp.stack(windows, -1).reshape(len(x), height * width, -1)


def sum_squared_gradients(layer: Layer, x: Array, dy: Array, shape: tuple[int, ...]) -> list[Array]:
    """Sums over samples of a layer's squared gradients, weight first; x and dy as `unfold_tap` makes them."""
    if layer.kind == "batchnorm":
        return [jnp.square((dy * x).sum(1)).sum(0), jnp.square(dy.sum(1)).sum(0)]
    if layer.kind == "embedding":
        return [_summed(_shares, (x, dy), x.shape[1] ** 2, jnp.zeros(shape, dy.dtype))]
    if x.shape[1] == 1:
        weight = jnp.square(dy[:, 0]).T @ jnp.square(x[:, 0])
    else:
        size = dy.shape[-1] * x.shape[-1]
        weight = _summed(_products, (x, dy), size, jnp.zeros((dy.shape[-1], x.shape[-1]), dy.dtype))
    return [weight.reshape(shape), jnp.square(dy.sum(1)).sum(0)][: len(layer.parameters)]


def _summed(add: Any, pair: tuple[Array, Array], size: int, zero: Array) -> Array:
    """`add(total, x, dy)` over parts of the samples of which `size` numbers each fit."""
    count = count_parts(len(pair[0]), size, jax.default_backend())
    if count == 1:
        return add(zero, *pair)
    split = [value.reshape(count, -1, *value.shape[1:]) for value in pair]
    return jax.lax.scan(lambda total, part: (add(total, *part), None), zero, split)[0]


def _products(total: Array, x: Array, dy: Array) -> Array:
    """Squares of each sample's Σ dyᵀ x."""
    return total + jnp.square(jnp.einsum("npo,npi->noi", dy, x)).sum(0)


def _shares(total: Array, ids: Array, dy: Array) -> Array:
    """Squares of each embedding row's gradient: places of a sample that name the same row are summed first.

    Each of c such places adds the square of the sum, divided by c, so that no array (N, rows, width) is made.
    """
    same = (ids[:, :, None] == ids[:, None, :]).astype(dy.dtype)  # (N, P, P)
    shares = jnp.square(same @ dy) / same.sum(2, keepdims=True)
    return total.at[ids.reshape(-1)].add(shares.reshape(-1, dy.shape[-1]))
