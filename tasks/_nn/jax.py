"""Layers that several jax models share, as functions of flat parameter dictionaries; images are NHWC inside a model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite import stream

Tree = dict[str, Array]
Tap = Callable[[str, Array, Array], Array]


def conv2d(x: Array, weight: Array, *, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
    """Convolution of (N, H, W, C) with a torch-shaped (out, in / groups, k, k) weight and symmetric padding.

    It computes in the weight's type.
    """
    pads, layout = ((padding, padding), (padding, padding)), ("NHWC", "OIHW", "NHWC")
    return lax.conv_general_dilated(
        x.astype(weight.dtype), weight, (stride, stride), pads, dimension_numbers=layout, feature_group_count=groups
    )


def max_pool(x: Array, *, window: int, stride: int, padding: int) -> Array:
    """Maximum over windows of (N, H, W, C), padded symmetrically with -inf as torch does."""
    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), pads)


def batch_norm(
    x: Array, buffers: Tree, name: str, *, train: bool, group: int, eps: float = 1e-5, momentum: float = 0.1
) -> tuple[Array, Tree]:
    """Batch normalisation over fixed groups of consecutive samples, before scale and shift.

    The twin of `suite.tasks._nn.torch.BatchNorm2d`: same groups, same unbiased running variance.

    Returns:
        The normalised input, and the new `{name}.running_mean` and `{name}.running_var` ({} in evaluation).
    """
    mean_name, var_name = f"{name}.running_mean", f"{name}.running_var"
    if not train:
        return ((x - buffers[mean_name]) * lax.rsqrt(buffers[var_name] + eps)).astype(x.dtype), {}
    groups = x.reshape(-1, group, *x.shape[1:])  # (groups, group, H, W, C)
    wide = widen_floats(groups)  # statistics of bfloat16 inputs in float32
    mean = wide.mean((1, 2, 3), keepdims=True)
    centred = wide - mean
    var = (centred * centred).mean((1, 2, 3), keepdims=True)
    count = group * x.shape[1] * x.shape[2]
    new = {
        mean_name: (1.0 - momentum) * buffers[mean_name] + momentum * mean.mean(0).reshape(-1),
        var_name: (1.0 - momentum) * buffers[var_name] + momentum * var.mean(0).reshape(-1) * (count / (count - 1)),
    }
    return (centred * lax.rsqrt(var + eps)).astype(x.dtype).reshape(x.shape), new


def widen_floats(x: Array) -> Array:
    """Return x in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def cross_entropies(logits: Array, labels: Array) -> Array:
    """Return the cross-entropy of each label (…), from logits (…, C), in at least float32."""
    return -jnp.take_along_axis(jax.nn.log_softmax(widen_floats(logits)), labels[..., None], -1)[..., 0]


def soft_cross_entropies(logits: Array, targets: Array) -> Array:
    """Return the cross-entropy of each distribution of targets (N, C), from logits (N, C), in at least float32."""
    return -(targets * jax.nn.log_softmax(widen_floats(logits))).sum(1)


def draw_labels(logits: Array, draws: Array) -> Array:
    """Return a class (…) of each distribution, from logits (…, C) and uniform draws (…); int32.

    Probabilities are summed as multiples of 2⁻³⁰, as in torch.
    """
    shares = jnp.round(jax.nn.softmax(widen_floats(logits)) * 2.0**30).astype(jnp.int32)
    below = jnp.cumsum(shares, -1, dtype=jnp.int32) < (draws * 2.0**30).astype(jnp.int32)[..., None]
    return jnp.minimum(below.sum(-1, dtype=jnp.int32), logits.shape[-1] - 1)


def find_type(params: Tree) -> Any:
    """Return the type that the model's products compute in: the narrowest of its parameters' types."""
    return min((value.dtype for value in params.values()), key=lambda kind: kind.itemsize)


def add_bias(y: Array, bias: Array) -> Array:
    """Return y + b in the type of y. The bias may be wider, and then its gradient is summed in its type."""
    return (y + bias).astype(y.dtype)


def linear(params: Tree, name: str, x: Array, tap: Tap) -> Array:
    """Return x Wᵀ + b of (…, in) with a torch-shaped (out, in) weight, in the weight's type; the bias may be absent."""
    x = x.astype(params[f"{name}.weight"].dtype)
    y = x @ params[f"{name}.weight"].T
    return tap(name, x, add_bias(y, params[f"{name}.bias"]) if f"{name}.bias" in params else y)


def layer_norm(params: Tree, name: str, x: Array, *, eps: float) -> Array:
    """Layer normalisation over the last axis (Ba et al. 2016), statistics in at least float32."""
    wide = widen_floats(x)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return (normal * params[f"{name}.weight"] + params[f"{name}.bias"]).astype(x.dtype)


def dropout(x: Array, rate: float, *, key: Array | None, name: str, index: Array) -> Array:
    """Set each element of (N, …) to 0 with probability `rate`, and divide the others by 1 - rate.

    The draw is a function of (seed, step, name, sample, element), and the rate is rounded: see `suite.stream`.
    `index` (N,) numbers the samples.
    """
    if not rate or key is None:
        return x
    keep = stream.keep(jnp, key, name, index, x[0].size, rate).reshape(x.shape)
    return jnp.where(keep, x / stream.share_kept(rate), 0.0).astype(x.dtype)


def attention(
    query: Array, key: Array, value: Array, allowed: Array, drop: Callable[[Array], Array] | None = None
) -> Array:
    """Softmax(Q Kᵀ / √d) V (Vaswani et al. 2017, eq. 1).

    Args:
        query: (N, heads, T, d).
        key: (N, heads, S, d).
        value: (N, heads, S, d).
        allowed: booleans that broadcast to (N, heads, T, S): the positions that a query may attend to; at least one.
        drop: dropout on the attention's probabilities.

    Returns:
        (N, heads, T, d).
    """
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    wide = jnp.where(allowed, widen_floats(scores), -jnp.inf)
    probabilities = jax.nn.softmax(wide, -1).astype(query.dtype)
    return (drop(probabilities) if drop else probabilities) @ value


def split_heads(x: Array, count: int) -> Array:
    """(N, T, count · d) as (N, count, T, d)."""
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(N, count, T, d) as (N, T, count · d)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
