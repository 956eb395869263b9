"""A ResNet of four bottleneck blocks, width 16, 10 classes; images NHWC, filters HWIO, as jax likes them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Tree = dict[str, Array]


def conv(x: Array, filters: Array, stride: int) -> Array:
    pad = filters.shape[0] // 2
    return lax.conv_general_dilated(
        x, filters, (stride, stride), 2 * [(pad, pad)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def unit(params: Any, name: str, x: Array, new: Any, state: Any, stride: int = 1) -> Array:
    """Convolution and batch normalisation, whose running statistics go into `new`."""
    x = conv(x, params[name]["filters"], stride)
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    old_mean, old_var = state[name]
    count = x.size / x.shape[-1]
    new[name] = 0.9 * old_mean + 0.1 * mean, 0.9 * old_var + 0.1 * var * count / (count - 1)
    return (x - mean) * lax.rsqrt(var + 1e-5) * params[name]["scale"] + params[name]["shift"]


def cross_entropy(logits: Array, label: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], 1).mean()


def loss(params: Any, state: Any, batch: Tree) -> tuple[Array, Any]:
    new: Any = {}
    x = batch["image"].transpose(0, 2, 3, 1)
    x = jax.nn.relu(unit(params, "conv1", x, new, state, 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for stage, stride in ((1, 1), (2, 2), (3, 2), (4, 2)):
        at = f"layer{stage}.0"
        y = jax.nn.relu(unit(params, f"{at}.conv1", x, new, state))
        y = jax.nn.relu(unit(params, f"{at}.conv2", y, new, state, stride))
        y = unit(params, f"{at}.conv3", y, new, state)
        x = jax.nn.relu(y + unit(params, f"{at}.downsample.0", x, new, state, stride))
    logits = x.mean((1, 2)) @ params["fc"]["weight"] + params["fc"]["bias"]
    return cross_entropy(logits, batch["label"]), new


def arranged(values: Tree) -> tuple[Any, Any]:
    """Parameters and running statistics by convolution."""
    params: Any = {"fc": {"weight": values["fc.weight"].T, "bias": values["fc.bias"]}}
    state: Any = {}
    for name in (key.removesuffix(".weight") for key, value in values.items() if value.ndim == 4):
        norm = name.replace("downsample.0", "downsample.1").replace("conv", "bn")
        scale, shift = values[f"{norm}.weight"], values[f"{norm}.bias"]
        params[name] = {"filters": values[f"{name}.weight"].transpose(2, 3, 1, 0), "scale": scale, "shift": shift}
        state[name] = jnp.zeros_like(shift), jnp.ones_like(shift)
    return params, state


def make(values: Tree) -> Any:
    return *arranged(values), loss
