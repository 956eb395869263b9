"""Calls of flax's layers, linen and nnx."""

import contextlib
from collections.abc import Iterator
from typing import Any

from flax import linen, nnx
from jax import Array

from suite.contract import Layer
from suite.engine.jax_modules import Call, PassOn, describe_convolution, patch_calls

Context = linen.module.InterceptorContext


@contextlib.contextmanager
def intercept(pass_on: PassOn) -> Iterator[None]:
    """A context in which calls of `Dense` or `Linear`, `Embed` and `Conv` return what `pass_on` makes of them."""

    def in_linen(call: Any, inputs: tuple[Any, ...], named: dict[str, Any], context: Context) -> Any:
        y, module = call(*inputs, **named), context.module
        layer = _describe(module, linen.Dense, linen.Embed, linen.Conv)
        # a user's class may have its own __call__, and call flax's inside
        if layer is None or context.method_name != "__call__" or not _is_of_flax(context.orig_method):
            return y
        leaf = "embedding" if isinstance(module, linen.Embed) else "kernel"
        x = (*inputs, *named.values())[0]
        return pass_on(Call(layer, module.get_variable("params", leaf), x, y))

    def in_nnx(call: Any, module: Any, x: Array) -> Array:
        y, layer = call(), _describe(module, nnx.Linear, nnx.Embed, nnx.Conv)
        if layer is None:
            return y
        variable = module.embedding if isinstance(module, nnx.Embed) else module.kernel
        return pass_on(Call(layer, variable.get_value(), x, y))

    with linen.intercept_methods(in_linen), patch_calls(dict.fromkeys((nnx.Linear, nnx.Embed, nnx.Conv), in_nnx)):
        yield


def _is_of_flax(method: Any) -> bool:
    """Return whether flax defines a method that is called."""
    return method.func.__module__.startswith("flax.")


def _describe(module: Any, dense: type, embedding: type, convolution: type) -> Layer | None:
    """Return a module's layer; None for other modules, and for convolutions that are not ordinary."""
    if isinstance(module, dense):
        return Layer("linear", (), transposed=True)
    if isinstance(module, embedding):
        return Layer("embedding", ())
    if not isinstance(module, convolution) or module.feature_group_count != 1 or module.mask is not None:
        return None
    for dilation in module.input_dilation, module.kernel_dilation:
        if dilation is not None and {1} != ({dilation} if isinstance(dilation, int) else {*dilation}):
            return None
    return describe_convolution(module.kernel_size, module.strides, module.padding, transposed=True)
