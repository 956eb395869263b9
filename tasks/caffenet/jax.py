"""CaffeNet in jax: pure functions of flat parameter dictionaries; fc6 sees torch's order of channels and places."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.tasks._images.jax import Classifier
from suite.tasks._nn.jax import Tap, Tree, add_bias, conv2d, dropout, linear
from suite.tasks.caffenet import CaffeNet
from suite.tasks.caffenet.architecture import (
    DROPOUT,
    NORM_ALPHA,
    NORM_BETA,
    NORM_SIZE,
    POOL,
    POOL_STRIDE,
    Architecture,
    compute_pooled_side,
)


@dataclass(frozen=True)
class Model(Classifier):
    """Images to class logits; the twin of `suite.tasks.caffenet.torch.Model`."""

    architecture: Architecture
    dropout: float = DROPOUT

    def logits(
        self, params: Tree, buffers: Tree, x: Array, *, train: bool, key: Array | None, index: Array, tap: Tap
    ) -> tuple[Array, Tree]:
        """(N, S, S, 3) images to (N, classes) logits; there are no buffers."""
        for conv in self.architecture.convolutions:
            weight, bias = params[f"{conv.name}.weight"], params[f"{conv.name}.bias"]
            y = conv2d(x, weight, stride=conv.stride, padding=conv.padding, groups=conv.groups)
            y = add_bias(y, bias)
            x = jax.nn.relu(y if conv.groups > 1 else tap(conv.name, x, y))
            x = _max_pool(x) if conv.pool else x
            x = _local_response_norm(x) if conv.norm else x
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        drop = functools.partial(dropout, rate=self.dropout, key=key if train else None, index=index)
        for name in ("fc6", "fc7"):
            x = drop(jax.nn.relu(linear(params, name, x, tap)), name=name)
        return linear(params, "fc8", x, tap), {}


def _max_pool(x: Array) -> Array:
    """Maximum over 3×3 windows of (N, H, W, C). The last window may extend beyond the edge."""
    pads = [(0, 0), *(((compute_pooled_side(s) - 1) * POOL_STRIDE + POOL - s) for s in x.shape[1:3]), (0, 0)]
    whole = [pad if isinstance(pad, tuple) else (0, max(0, pad)) for pad in pads]
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, POOL, POOL, 1), (1, POOL_STRIDE, POOL_STRIDE, 1), whole)


def _local_response_norm(x: Array) -> Array:
    """Each value over (1 + α / n Σ x²)^β, summed over n channels around it (Krizhevsky et al. 2012, §3.3, as Caffe)."""
    half = NORM_SIZE // 2
    squares = jnp.pad(x * x, ((0, 0), (0, 0), (0, 0), (half, half)))
    total = sum(squares[..., place : place + x.shape[-1]] for place in range(NORM_SIZE))
    return x / (1.0 + NORM_ALPHA / NORM_SIZE * total) ** NORM_BETA


def make(task: CaffeNet) -> Model:
    """Make the task's model."""
    return Model(task.architecture, task.smoothing, task.dropout)
