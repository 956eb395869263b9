"""FRNN: convolutions along the radius of two profiles, two dense layers, two LSTMs of 48 units, one number a step."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Tree = dict[str, Array]


def conv(params: Any, x: Array) -> Array:
    filters, bias = params
    y = lax.conv_general_dilated(x, filters, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return jax.nn.relu(y + bias)


def lstm(params: Any, x: Array, state: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
    """(T, N, inputs) to (T, N, 48), and the last state."""
    inputs, recurrent, bias = params

    def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        i, f, g, o = jnp.split(x + hidden @ recurrent, 4, 1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, outputs = lax.scan(step, state, x @ inputs + bias)
    return outputs, state


def loss(params: Any, states: Any, batch: Tree) -> tuple[Array, Any]:
    x = batch["profiles"].reshape(-1, 16, 2)
    for one, two in (params["conv"][:2], params["conv"][2:]):
        x = conv(two, conv(one, x))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    for weight, bias in params["dense"]:
        x = jax.nn.relu(x @ weight + bias)
    x = jnp.concatenate([batch["signals"], x.reshape(32, 64, 8)], 2).swapaxes(0, 1)
    new = []
    for layer, state in zip(params["lstm"], states, strict=True):
        x, state = lstm(layer, x, jax.tree.map(lambda v: jnp.where(batch["begins"][:, None], 0.0, v), state))
        new.append(state)
    weight, bias = params["output"]
    losses = jax.nn.relu(1.0 - batch["target"] * (x @ weight + bias)[..., 0].T)
    return (losses * batch["mask"]).sum() / batch["mask"].sum(), new


def make(values: Tree) -> Any:
    def pair(name: str) -> tuple[Array, Array]:
        return values[f"{name}.weight"].T, values[f"{name}.bias"]

    params: dict[str, Any] = {"dense": [pair("dense.0"), pair("dense.1")], "output": pair("output"), "conv": []}
    for number, kernel in enumerate((3, 1, 3, 1)):
        weight, bias = pair(f"conv.{number}")
        params["conv"].append((weight.reshape(kernel, -1, weight.shape[1]), bias))
    names = [f"lstm.{layer}" for layer in range(2)]
    params["lstm"] = [
        (values[f"{n}.input.weight"].T, values[f"{n}.recurrent.weight"].T, values[f"{n}.input.bias"]) for n in names
    ]
    return params, [(jnp.zeros((32, 48)), jnp.zeros((32, 48))) for _ in names], loss
