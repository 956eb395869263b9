"""BERT of two layers, width 128, 4 heads, 64 positions; hidden words only."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Tree = dict[str, Array]


def linear(params: Any, x: Array) -> Array:
    return x @ params["weight"] + params["bias"]


def norm(params: Any, x: Array, eps: float) -> Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + eps) * params["weight"] + params["bias"]


def attention(params: Any, x: Array, memory: Array, mask: Array) -> Array:
    """Four heads of 32; `mask` (N or 1, 1, T or 1, S)."""
    parts = linear(params["query"], x), linear(params["key"], memory), linear(params["value"], memory)
    query, key, value = (part.reshape(*part.shape[:2], 4, 32).swapaxes(1, 2) for part in parts)
    scores = query @ key.swapaxes(2, 3) / 32**0.5
    seen = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)) @ value
    return linear(params["output"], seen.swapaxes(1, 2).reshape(x.shape))


def feed_forward(params: Any, x: Array, activation: Callable[[Array], Array]) -> Array:
    return linear(params["outer"], activation(linear(params["inner"], x)))


def loss(params: Any, state: None, batch: Tree) -> tuple[Array, None]:
    words, eps = params["word"]["weight"], 1e-12
    x = words[batch["tokens"]] + params["position"]["weight"] + params["segment"]["weight"][batch["segment"]]
    x = norm(params["norm"], x, eps)
    for layer in params["encoder"].values():
        x = norm(layer["norm1"], x + attention(layer, x, x, batch["visible"][:, None, None]), eps)
        x = norm(layer["norm2"], x + feed_forward(layer, x, jax.nn.gelu), eps)
    x = x[jnp.arange(len(x))[:, None], batch["position"]]
    x = norm(params["mlm"]["norm"], jax.nn.gelu(linear(params["mlm"]["transform"], x)), eps)
    each = jax.nn.log_softmax(x @ words.T + params["mlm"]["bias"])
    losses = -jnp.take_along_axis(each, batch["label"][..., None], 2)[..., 0]
    return (losses * batch["masked"]).sum() / batch["masked"].sum(), state


LINEAR = ("query", "key", "value", "out", "output", "up", "inner", "down", "outer", "transform")


def nested(values: Tree, names: dict[str, str]) -> Any:
    """Dotted names as dictionaries in dictionaries, some of them renamed; weights of linear layers (in, out)."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        at, parts = found, name.split(".")
        for part in parts[:-1]:
            at = at.setdefault(names.get(part, part), {})
        at[parts[-1]] = value.T if value.ndim == 2 and parts[-2] in LINEAR else value
    return found


def make(values: Tree) -> Any:
    return nested(values, {"out": "output", "up": "inner", "down": "outer"}), None, loss
