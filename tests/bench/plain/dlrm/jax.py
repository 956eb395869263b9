"""DLRM with 26 tables in one, networks 13-64-32-16 and 367-128-64-1."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

ROW, COLUMN = jnp.tril_indices(27, -1)


def network(layers: Any, x: Array) -> Array:
    for number, (weight, bias) in enumerate(layers):
        x = jax.nn.relu(x) if number else x
        x = x @ weight + bias
    return x


def loss(params: Any, state: None, batch: dict[str, Array]) -> tuple[Array, None]:
    dense = jax.nn.relu(network(params["bottom"], batch["dense"]))
    vectors = jnp.concatenate([dense[:, None], params["tables"][batch["ids"]]], 1)
    products = (vectors @ vectors.swapaxes(1, 2))[:, ROW, COLUMN]
    logit = network(params["top"], jnp.concatenate([dense, products], 1))[:, 0]
    return (jnp.logaddexp(0.0, logit) - batch["label"] * logit).mean(), state


def make(values: dict[str, Array]) -> Any:
    params: dict[str, Any] = {"tables": values["tables.weight"]}
    for name in ("bottom", "top"):
        params[name] = [(values[f"{name}.{n}.weight"].T, values[f"{name}.{n}.bias"]) for n in range(3)]
    return params, None, loss
