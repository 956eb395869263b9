"""What parameters an optimizer accepts, and their shapes in models whose axes have another order than torch's."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from suite.contract import Layer, UserError
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


def check_parameters(values: Mapping[str, Any]) -> None:
    """Check that the parameters are real.

    Raises:
        UserError: one is complex.
    """
    for name, value in values.items():
        if jnp.iscomplexobj(value):
            raise UserError(
                f"{name} is complex; store its real and imaginary parts in real parameters, and join them in the model"
            )


def check_shapes(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the parameters have the shapes that an optimizer was planned for.

    Raises:
        UserError: one has another shape, or is unknown.
    """
    for name, value in values.items():
        if name not in shapes:
            raise UserError(f"{name}: a parameter that shapes lacks; pass the shapes of all parameters")
        if value.shape != tuple(shapes[name]):
            raise UserError(f"{name} has shape {value.shape}; shapes says {tuple(shapes[name])}; pass the parameter's")
