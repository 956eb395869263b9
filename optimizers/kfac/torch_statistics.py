"""A layer's factors in torch, as sums over samples; reference.py has the formulas."""

import functools
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from suite.contract import Layer
from suite.optimizers._base.torch import widen_type
from suite.optimizers._linalg.torch import multiply_matrices
from suite.optimizers.kfac.windows import find_met_rows, list_products

Tree = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]
LEAST = 128  # columns below which halving a symmetric product no longer pays, measured on a CPU


def sum_factors(
    layer: Layer,
    calls: Sequence[Pair],
    weight: Tensor,
    rows: int,
    wanted: Collection[str],
    *,
    full: bool = False,
) -> Tree:
    """One layer's sums over samples of the factors `wanted`, by what their names end in: `/in`, `/out`, or nothing.

    Args:
        layer: of the model.
        calls: of the layer in one pass, each so many more positions of a sample: its input, as `suite.contract.Layer`
            says, and the gradient of the summed weighted loss with respect to its output.
        weight: of the samples, (N,).
        rows: of its first parameter.
        wanted: which factors.
        full: of a batch normalisation, one block (2C, 2C) of all scales, then shifts; else (C, 3): of each channel
            [[a, b], [b, c]] as (a, b, c).
    """
    root = weight.sqrt()
    # dy holds the weight once, and its square should
    inverse = torch.where(weight > 0, root.reciprocal(), 0.0)
    if layer.kind == "batchnorm":
        return {"": _normalised(calls, inverse, full=full)}
    sums: Tree = {}
    for x, dy in calls:
        for end, value in _call(layer, x, dy, weight, root, inverse, rows, wanted).items():
            sums[end] = sums[end] + value if end in sums else value
    if "/out" in sums:
        sums["/out"] /= sum(_places(layer, dy) for _, dy in calls)
    return sums


def _places(layer: Layer, dy: Tensor) -> int:
    """Positions of a sample in one call."""
    return dy[0].numel() // dy.shape[1 if layer.kind == "conv2d" else -1]


def _normalised(calls: Sequence[Pair], inverse: Tensor, *, full: bool) -> Tensor:
    """A batch normalisation's factor: a sample's gradients are summed over positions and calls, then squared."""
    gradients = [((dy * x).flatten(2).sum(2), dy.flatten(2).sum(2, dtype=x.dtype)) for x, dy in calls]  # (N, C)
    scale, shift = (functools.reduce(torch.add, parts) * inverse[:, None] for parts in zip(*gradients, strict=True))
    if full:
        return compute_gram(torch.cat([scale, shift], 1))
    return torch.stack([(scale * scale).sum(0), (scale * shift).sum(0), (shift * shift).sum(0)], 1)


def _call(
    layer: Layer,
    x: Tensor,
    dy: Tensor,
    weight: Tensor,
    root: Tensor,
    inverse: Tensor,
    rows: int,
    wanted: Collection[str],
) -> Tree:
    """Return the sums of one call; `root` is √weight and `inverse` what dy is multiplied by, (N,) each."""
    convolution, places, sums = layer.kind == "conv2d", _places(layer, dy), dict[str, Tensor]()
    if "/out" in wanted:
        inverse = inverse.to(dy.dtype)
        if convolution:
            columns = dy.new_empty(dy.shape[1], len(dy), *dy.shape[2:])
            torch.mul(dy.transpose(0, 1), inverse[:, None, None], out=columns)
            sums["/out"] = compute_gram(columns.flatten(1).T)
        else:
            sums["/out"] = compute_gram((dy * _beside(inverse, dy)).flatten(0, -2))
    if "/in" not in wanted:
        return sums
    if layer.kind == "embedding":
        return sums | {"/in": weight.new_zeros(rows).index_add_(0, x.reshape(-1), weight.repeat_interleave(places))}
    x = x.to(dy.dtype)  # under autocast, the layer has rounded its input
    bias, root = len(layer.parameters) > 1, root.to(x.dtype)
    if convolution:
        return sums | {"/in": _windows(layer, x, root, bias)}
    a = (x * _beside(root, x)).flatten(0, -2)
    n = a.shape[1]
    whole = a.new_empty(n + bias, n + bias, dtype=widen_type(a.dtype))
    compute_gram(a, whole[:n, :n])
    if bias:  # as if every row of `a` ended in √weight
        _border(whole, multiply_matrices(root.repeat_interleave(places)[None], a)[0], places * weight.sum())
    return sums | {"/in": whole}


def compute_gram(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the symmetric product rowsᵀ rows (n, n), by halves: three products for every four of an ordinary one."""
    n = rows.shape[1]
    out = rows.new_empty(n, n, dtype=widen_type(rows.dtype)) if out is None else out
    if n <= LEAST:
        return multiply_matrices(rows.T, rows, out)
    half = n // 2
    left, right = rows[:, :half], rows[:, half:]
    compute_gram(left, out[:half, :half])
    compute_gram(right, out[half:, half:])
    multiply_matrices(left.T, right, out[:half, half:])
    out[half:, :half] = out[:half, half:].T
    return out


def _beside(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *[1] * (like.ndim - 1))


def _border(whole: Tensor, row: Tensor, corner: Tensor) -> None:
    whole[-1, :-1] = whole[:-1, -1] = row
    whole[-1, -1] = corner


def _unfolded(layer: Layer, x: Tensor, root: Tensor, width: int) -> Tensor:
    """Windows along x only, times √weight, rows of the image first: (H, N, width, k, C)."""
    k, s, p = layer.kernel, layer.stride, layer.padding
    image = x.new_empty(x.shape[2], len(x), x.shape[3], x.shape[1])
    torch.mul(x.permute(2, 0, 3, 1), root[:, None, None], out=image)
    if k == 1 and not p:
        return image[:, :, ::s, None]
    unfolded = x.new_empty(*image.shape[:2], width, k, image.shape[3])
    for j in range(k):
        first = max(0, -((j - p) // s))  # the first window with column j in the image; then one after the last
        last = max(first, min(width, -((j - p - image.shape[2]) // s)))
        unfolded[:, :, :first, j] = unfolded[:, :, last:, j] = 0
        if first < last:
            unfolded[:, :, first:last, j] = image[:, :, first * s + j - p : (last - 1) * s + j - p + 1 : s]
    return unfolded


def _windows(layer: Layer, x: Tensor, root: Tensor, bias: bool) -> Tensor:
    """Σ a aᵀ over windows `a`, in the order (row of the kernel, column, channel), then the bias; see windows.py."""
    k, s, rows = layer.kernel, layer.stride, x.shape[2]
    height, width = ((side + 2 * layer.padding - k) // s + 1 for side in x.shape[2:])
    image = _unfolded(layer, x, root, width).flatten(3).flatten(1, 2)  # (H, N · width, k · C)
    n = image.shape[2]
    whole = x.new_zeros(k * n + bias, k * n + bias, dtype=widen_type(x.dtype))

    def block(i: int, j: int) -> Tensor:
        return whole[i * n : (i + 1) * n, j * n : (j + 1) * n]

    for product in list_products(layer, rows):
        left = image[product.first :: s][product.low : product.high].flatten(0, 1)
        right = image[product.second :: s][product.low + product.shift : product.high + product.shift].flatten(0, 1)
        part = multiply_matrices(left.T, right) if product.distance else compute_gram(left)
        for i in product.blocks:
            block(i, i + product.distance).add_(part)
    for i in range(k):
        for j in range(i):
            block(i, j).copy_(block(j, i).T)
    if bias:
        roots = root.repeat_interleave(width).expand(len(image), 1, -1)
        sums = multiply_matrices(roots, image)[:, 0]  # (H, k · C)
        spans = [find_met_rows(layer, rows, i) for i in range(k)]
        row = torch.cat([sums[line::s][low:high].sum(0) for line, low, high in spans])
        _border(whole, row, height * width * (root * root).sum(dtype=whole.dtype))
    return whole
