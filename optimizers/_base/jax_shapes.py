"""Shapes of layers' parameters, in models whose axes have another order than torch's."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.optimizers._plan import turn_axes


class Shapes:
    """Shapes in which an optimizer computes with the parameters of layers.

    Weights are (out, in, …), and biases (out,). In models of flax, weights are (…, in, out); in equinox, biases of
    convolutions are (out, 1, 1).

    Args:
        layers: by module name.
    """

    def __init__(self, layers: Mapping[str, Layer]):
        self._transposed = {layer.parameters[0] for layer in layers.values() if layer.transposed}
        self._biases = {name for layer in layers.values() for name in layer.parameters[1:]}

    def unify(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return parameters, or gradients, in these shapes."""
        turned = {name: _turned(values[name]) for name in self._transposed.intersection(values)}
        return values | turned | {name: values[name].reshape(-1) for name in self._biases.intersection(values)}

    def restore(self, values: dict[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `unify` has changed in the shapes of `like`."""
        turned = {name: _turned(values[name], back=True) for name in self._transposed.intersection(values)}
        biases = {name: values[name].reshape(like[name].shape) for name in self._biases.intersection(values)}
        return values | turned | biases


def _turned(value: Array, *, back: bool = False) -> Array:
    """Return a weight (…, in, out) as (out, in, …), or the other way round with `back`."""
    axes = turn_axes(tuple(range(value.ndim)))
    return jnp.transpose(value, tuple(map(axes.index, range(value.ndim))) if back else axes)
