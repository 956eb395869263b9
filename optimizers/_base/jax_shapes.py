"""What parameters an optimizer accepts, and their shapes in models whose axes have another order than torch's."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from suite.contract import Layer, Rows, UserError
from suite.optimizers._plan import turn_axes

KINDS = (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64)  # types of parameters


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
    """Check that the parameters are real numbers of a type that an optimizer computes with.

    Raises:
        UserError: one is complex, whole numbers, or the like.
    """
    for name, value in values.items():
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise UserError(
                f"{name} is complex; store its real and imaginary parts in real parameters, and join them in the model"
            )
        if value.dtype not in KINDS:
            kinds = ", ".join(kind.dtype.name for kind in KINDS)
            raise UserError(f"{name} has type {value.dtype}; parameters must be {kinds}; leave it out of them")


def check_gradients(grads: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Check that each parameter has a gradient of its shape. Another one might be broadcast, and would spoil the state.

    Raises:
        UserError: a gradient is missing, belongs to no parameter, or has another shape.
    """
    for name in params:
        if name not in grads:
            raise UserError(
                f"{name} has no gradient; pass one for each parameter, or freeze it with optax.masked or the like"
            )
    for name, grad in grads.items():
        if name not in params:
            raise UserError(f"there is a gradient of {name}, which is no parameter; pass those of the parameters")
        if not isinstance(grad, Rows) and grad.shape != params[name].shape:
            raise UserError(
                f"{name} has shape {params[name].shape}; its gradient has {grad.shape}; pass the parameter's"
            )


def check_shapes(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the parameters have the shapes that an optimizer was planned for.

    Raises:
        UserError: one has another shape, is unknown, or is missing.
    """
    if missing := sorted(shapes.keys() - values.keys()):
        raise UserError(
            f"{missing[0]}: in shapes, but no parameter here; pass the shapes, and layers, of the parameters that this "
            "optimizer updates"
        )
    for name, value in values.items():
        if name not in shapes:
            raise UserError(f"{name}: a parameter that shapes lacks; pass the shapes of all parameters")
        if value.shape != tuple(shapes[name]):
            raise UserError(f"{name} has shape {value.shape}; shapes says {tuple(shapes[name])}; pass the parameter's")
