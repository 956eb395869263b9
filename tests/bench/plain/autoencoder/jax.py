"""An autoencoder of strokes, 784-400-200-100-50-25-6 and back."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

LAYERS, CODE = 12, 5


def loss(params: Any, state: None, batch: dict[str, Array]) -> tuple[Array, None]:
    x = batch["image"]
    for number, (weight, bias) in enumerate(params):
        x = x @ weight + bias
        x = x if number in (CODE, LAYERS - 1) else jax.nn.relu(x)
    error = (jnp.logaddexp(0.0, x) - batch["image"] * x).sum(1).mean()
    return error + 0.5e-5 * sum((p * p).sum() for p in jax.tree.leaves(params)), state


def make(values: dict[str, Array]) -> Any:
    names = [f"layers.{number}" for number in range(LAYERS)]
    return [(values[f"{name}.weight"].T, values[f"{name}.bias"]) for name in names], None, loss
