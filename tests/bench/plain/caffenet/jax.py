"""CaffeNet with 24 channels in its first convolution, for 64 pixels and 16 classes; images NHWC, filters HWIO."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..resnet50.jax import Tree, cross_entropy


def conv(params: Any, x: Array, stride: int = 1, pad: int = 0, groups: int = 1) -> Array:
    filters, bias = params
    layout = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(
        x, filters, 2 * (stride,), 2 * [(pad, pad)], dimension_numbers=layout, feature_group_count=groups
    )
    return jax.nn.relu(y + bias)


def pool(x: Array) -> Array:
    """3×3 of stride 2; rounded up, so that the last window may reach over the edge."""
    over = (x.shape[1] - 3) % 2
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (0, over), (0, over), (0, 0)))


def norm(x: Array) -> Array:
    near = lax.reduce_window(x * x, 0.0, lax.add, (1, 1, 1, 5), (1, 1, 1, 1), "SAME")
    return x / (1.0 + 1e-4 / 5 * near) ** 0.75


def loss(params: Any, key: Array, batch: Tree, *, dropout: float) -> tuple[Array, Array]:
    one, two, three, four, five, six, seven, eight = params
    x = norm(pool(conv(one, batch["image"].transpose(0, 2, 3, 1), stride=4)))
    x = norm(pool(conv(two, x, pad=2, groups=2)))
    x = conv(four, conv(three, x, pad=1), pad=1, groups=2)
    x = pool(conv(five, x, pad=1, groups=2)).reshape(len(x), -1)
    key, *keys = jax.random.split(key, 3)
    for (weight, bias), draw in zip((six, seven), keys, strict=True):
        x = jax.nn.relu(x @ weight + bias)
        x = jnp.where(jax.random.bernoulli(draw, 1.0 - dropout, x.shape), x / (1.0 - dropout), 0.0)
    weight, bias = eight
    return cross_entropy(x @ weight + bias, batch["label"]), key


def make(values: Tree, dropout: float = 0.5) -> Any:
    convolutions = [(values[f"conv{n}.weight"].transpose(2, 3, 1, 0), values[f"conv{n}.bias"]) for n in range(1, 6)]
    linears = [(values[f"fc{n}.weight"].T, values[f"fc{n}.bias"]) for n in (6, 7, 8)]
    return [*convolutions, *linears], jax.random.key(0), partial(loss, dropout=dropout)
