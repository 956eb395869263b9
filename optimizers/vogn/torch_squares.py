"""Sums of squared per-sample gradients, layer by layer, in torch."""

import torch
from torch import Tensor
from torch.nn import functional

from suite.contract import Layer
from suite.optimizers.vogn.plan import count_parts


def unfold_tap(layer: Layer, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's tap as x (N, P, in) and dy (N, P, out), whose products, summed over P, are a sample's gradient.

    For an embedding x is (N, P), for batch normalisation both are (N, P, C).
    """
    n = len(dy)
    if layer.kind == "embedding":
        return x.reshape(n, -1), dy.reshape(n, -1, dy.shape[-1])
    x = x.to(dy.dtype)
    if layer.kind == "linear":
        return x.reshape(n, -1, x.shape[-1]), dy.reshape(n, -1, dy.shape[-1])
    if layer.kind == "conv2d" and layer.kernel == 1 and not layer.padding:
        x = x[:, :, :: layer.stride, :: layer.stride]
    elif layer.kind == "conv2d":
        x = functional.unfold(x, layer.kernel, padding=layer.padding, stride=layer.stride)
    return x.reshape(n, x.shape[1], -1).mT, dy.reshape(n, dy.shape[1], -1).mT


def sum_squared_gradients(layer: Layer, x: Tensor, dy: Tensor, shape: torch.Size) -> list[Tensor]:
    """Sums over samples of a layer's squared gradients, weight first; x and dy as `unfold_tap` makes them."""
    if layer.kind == "batchnorm":
        return [(dy * x).sum(1).square().sum(0), dy.sum(1).square().sum(0)]
    if layer.kind == "embedding":
        return [_embedding(x, dy, shape)]
    if x.shape[1] == 1:
        weight = dy[:, 0].square().mT @ x[:, 0].square()
    else:
        count = count_parts(len(x), dy.shape[-1] * x.shape[-1], dy.device.type)
        sums = [(g.mT @ a).square_().sum(0) for a, g in zip(x.chunk(count), dy.chunk(count), strict=True)]
        weight = torch.stack(sums).sum(0)
    return [weight.view(shape), dy.sum(1).square().sum(0)][: len(layer.parameters)]


def _embedding(ids: Tensor, dy: Tensor, shape: torch.Size) -> Tensor:
    """Squares of each row's gradient: places of a sample that name the same row are summed first.

    Each of c such places adds the square of the sum, divided by c, so that no array (N, rows, width) is made.
    """
    total = dy.new_zeros(shape)
    count = count_parts(len(ids), ids.shape[1] ** 2, dy.device.type)
    for rows, g in zip(ids.chunk(count), dy.chunk(count), strict=True):
        same = (rows[:, :, None] == rows[:, None, :]).to(g.dtype)  # (N, P, P)
        shares = (same @ g).square() / same.sum(2, keepdim=True)
        total.index_add_(0, rows.reshape(-1), shares.reshape(-1, shape[1]))
    return total
