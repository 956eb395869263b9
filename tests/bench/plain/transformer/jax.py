"""Transformer of two and two layers, width 128, 4 heads, one matrix for all words."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..bert.jax import Tree, attention, feed_forward, nested, norm

PAD, BOS, LONGEST, EPSILON = 0, 1, 18, 1e-6
ANGLE = jnp.arange(LONGEST)[:, None] / 10_000 ** (jnp.arange(0, 128, 2) / 128)
PLACES = jnp.stack([jnp.sin(ANGLE), jnp.cos(ANGLE)], -1).reshape(LONGEST, 128)


def loss(params: Any, state: None, batch: Tree) -> tuple[Array, None]:
    words, source, target = params["embedding"]["weight"], batch["source"], batch["target"]
    mask, causal = (source != PAD)[:, None, None], jnp.tril(jnp.ones(2 * target.shape[1:], bool))

    def embed(x: Array) -> Array:
        return words[x] * 128**0.5 + PLACES[: x.shape[1]]

    def add(part: Any, x: Array, y: Array) -> Array:
        return norm(part["norm"], x + y, EPSILON)

    memory = embed(source)
    for layer in params["encoder"].values():
        memory = add(layer["attention"], memory, attention(layer["attention"], memory, memory, mask))
        memory = add(layer["feed_forward"], memory, feed_forward(layer["feed_forward"], memory, jax.nn.relu))
    x = embed(jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS))
    for layer in params["decoder"].values():
        x = add(layer["attention"], x, attention(layer["attention"], x, x, causal))
        x = add(layer["source_attention"], x, attention(layer["source_attention"], x, memory, mask))
        x = add(layer["feed_forward"], x, feed_forward(layer["feed_forward"], x, jax.nn.relu))
    each, counts = jax.nn.log_softmax(x @ words.T), target != PAD
    losses = -(0.9 * jnp.take_along_axis(each, target[..., None], 2)[..., 0] + 0.1 * each.mean(-1))
    return (losses * counts).sum() / counts.sum(), state


def make(values: Tree) -> Any:
    return nested(values, {}), None, loss
