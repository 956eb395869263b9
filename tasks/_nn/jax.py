"""Layers that several jax models share, as functions of flat parameter dictionaries; images are NHWC inside a model."""

import jax
import jax.numpy as jnp
from jax import Array, lax

Tree = dict[str, Array]


def conv2d(x: Array, weight: Array, *, stride: int = 1, padding: int = 0) -> Array:
    """Convolution of (N, H, W, C) with a torch-shaped (out, in, k, k) weight and symmetric padding."""
    pads = ((padding, padding), (padding, padding))
    return lax.conv_general_dilated(x, weight, (stride, stride), pads, dimension_numbers=("NHWC", "OIHW", "NHWC"))


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
    wide = groups.astype(jnp.promote_types(x.dtype, jnp.float32))  # statistics of bfloat16 inputs in float32
    mean = wide.mean((1, 2, 3), keepdims=True)
    centred = wide - mean
    var = (centred * centred).mean((1, 2, 3), keepdims=True)
    count = group * x.shape[1] * x.shape[2]
    new = {
        mean_name: (1.0 - momentum) * buffers[mean_name] + momentum * mean.mean(0).reshape(-1),
        var_name: (1.0 - momentum) * buffers[var_name] + momentum * var.mean(0).reshape(-1) * (count / (count - 1)),
    }
    return (centred * lax.rsqrt(var + eps)).astype(x.dtype).reshape(x.shape), new


def cross_entropy(logits: Array, target: Array) -> Array:
    """Per-sample cross-entropy of (N, C) logits against (N, C) target probabilities, in at least float32."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return -(target * jax.nn.log_softmax(wide)).sum(1)
