"""A layer's factors in jax, as sums over samples; reference.py has the formulas."""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from suite.contract import Layer
from suite.optimizers._base.jax import widen_floats, widen_type
from suite.optimizers._linalg.jax import multiply_matrices
from suite.optimizers.kfac.windows import find_met_rows, list_products

Tree = dict[str, Array]
Pair = tuple[Array, Array]
# Columns up to which a symmetric product is not halved. On a CPU halving 384 columns saves a tenth, 1,024 a fifth, and
# a second time a tenth more; each takes 0.1 s to compile.
LEAST = 384


def sum_factors(layer: Layer, calls: Sequence[Pair], weight: Array, rows: int, *, full: bool = False) -> Tree:
    """One layer's sums over samples of its factors, by what their names end in: `/in`, `/out`, or nothing.

    Args:
        layer: of the model.
        calls: of the layer in one pass, each so many more positions of a sample: its input, as `suite.contract.Layer`
            says, and the gradient of the summed weighted loss with respect to its output; in jax's layouts.
        weight: of the samples, (N,).
        rows: of its first parameter.
        full: of a batch normalisation, one block (2C, 2C) of all scales, then shifts; else (C, 3): of each channel
            [[a, b], [b, c]] as (a, b, c).
    """
    root = jnp.sqrt(weight)
    # dy holds the weight once, and its square should
    inverse = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, root, 1.0), 0.0)
    if layer.kind == "batchnorm":
        return {"": _normalised(calls, inverse, full=full)}
    sums: Tree = {}
    for x, dy in calls:
        for end, value in _call(layer, x, dy, weight, root, inverse, rows).items():
            sums[end] = sums[end] + value if end in sums else value
    return sums | {"/out": sums["/out"] / sum(dy[0, ..., 0].size for _, dy in calls)}  # all positions of a sample


def _normalised(calls: Sequence[Pair], inverse: Array, *, full: bool) -> Array:
    """A batch normalisation's factor: a sample's gradients are summed over positions and calls, then squared."""
    wide = [(widen_floats(x), widen_floats(dy)) for x, dy in calls]
    gradients = [[value.sum(tuple(range(1, dy.ndim - 1))) for value in (dy * x, dy)] for x, dy in wide]  # (N, C)
    scale, shift = (functools.reduce(jnp.add, parts) * inverse[:, None] for parts in zip(*gradients, strict=True))
    if full:
        return compute_gram(jnp.concatenate([scale, shift], 1))
    return jnp.stack([(scale * scale).sum(0), (scale * shift).sum(0), (shift * shift).sum(0)], 1)


def _call(layer: Layer, x: Array, dy: Array, weight: Array, root: Array, inverse: Array, rows: int) -> Tree:
    """Return the sums of one call; `root` is √weight and `inverse` what dy is multiplied by, (N,) each."""
    places, g = dy[0, ..., 0].size, dy * _beside(inverse.astype(dy.dtype), dy)
    sums = {"/out": compute_gram(g.reshape(-1, g.shape[-1]))}
    if layer.kind == "embedding":
        return sums | {"/in": jnp.zeros(rows, weight.dtype).at[x.reshape(-1)].add(jnp.repeat(weight, places))}
    bias, root = len(layer.parameters) > 1, root.astype(x.dtype)
    a = x * _beside(root, x)
    if layer.kind == "conv2d":
        return sums | {"/in": _windows(layer, a, root, bias)}
    a = a.reshape(-1, a.shape[-1])
    whole = compute_gram(a)
    if not bias:
        return sums | {"/in": whole}
    # on a CPU compiled in a third of a product's time
    row = (jnp.repeat(root, places)[:, None] * a).sum(0, dtype=whole.dtype)
    return sums | {"/in": _bordered(whole, row, places * weight.sum())}


def compute_gram(rows: Array, halvings: int = 2) -> Array:
    """Return the symmetric product rowsᵀ rows (n, n), by halves: three products for every four of an ordinary one."""
    if rows.shape[1] <= LEAST or not halvings:
        return multiply_matrices(rows.T, rows)
    half = rows.shape[1] // 2
    left, right = rows[:, :half], rows[:, half:]
    across = multiply_matrices(left.T, right)
    return join_matrices([[compute_gram(left, halvings - 1), across], [across.T, compute_gram(right, halvings - 1)]])


def join_matrices(rows: list[list[Array]]) -> Array:
    """Matrices put together, as by `numpy.block`, each by its own update.

    XLA compiles every concatenation on a CPU by itself, but equal updates of equal layers only once.
    """
    whole = jnp.zeros((sum(row[0].shape[0] for row in rows), sum(part.shape[1] for part in rows[0])), rows[0][0].dtype)
    top = 0
    for row in rows:
        left = 0
        for part in row:
            whole = lax.dynamic_update_slice(whole, part, (top, left))
            left += part.shape[1]
        top += row[0].shape[0]
    return whole


def _beside(value: Array, like: Array) -> Array:
    return value.reshape(-1, *[1] * (like.ndim - 1))


def _bordered(whole: Array, row: Array, corner: Array) -> Array:
    return join_matrices([[whole, row[:, None]], [row[None], corner[None, None]]])


def _windows(layer: Layer, x: Array, root: Array, bias: bool) -> Array:
    """Σ a aᵀ over windows `a`, in the order (row of the kernel, column, channel), then the bias; see windows.py."""
    k, s, p, rows = layer.kernel, layer.stride, layer.padding, x.shape[1]
    height, width = ((side + 2 * p - k) // s + 1 for side in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), (0, 0), (p, p), (0, 0))).transpose(1, 0, 2, 3)
    beside = [padded[:, :, j : j + s * (width - 1) + 1 : s] for j in range(k)]
    image = jnp.stack(beside, 3).reshape(rows, -1, k * x.shape[3])  # (H, N · width, k · C): windows along x only
    n = image.shape[2]
    parts = {(i, j): jnp.zeros((n, n), widen_type(x.dtype)) for i in range(k) for j in range(i, k)}
    for product in list_products(layer, rows):
        left = image[product.first :: s][product.low : product.high].reshape(-1, n)
        right = image[product.second :: s][product.low + product.shift : product.high + product.shift].reshape(-1, n)
        part = multiply_matrices(left.T, right) if product.distance else compute_gram(left)
        for i in product.blocks:
            parts[i, i + product.distance] += part
    whole = join_matrices([[parts[i, j] if i <= j else parts[j, i].T for j in range(k)] for i in range(k)])
    if not bias:
        return whole
    sums = (jnp.repeat(root, width)[:, None] * image).sum(1, dtype=whole.dtype)  # (H, k · C)
    spans = [find_met_rows(layer, rows, i) for i in range(k)]
    row = jnp.concatenate([sums[line::s][low:high].sum(0) for line, low, high in spans])
    return _bordered(whole, row, height * width * (root * root).sum(dtype=whole.dtype))
