"""Calls of equinox's layers, which compute one sample inside `jax.vmap`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from suite.contract import Layer
from suite.engine.jax_modules import Call, PassOn, describe_convolution, patch_calls

Batch = Callable[[Array, Array], Array]


@contextlib.contextmanager
def intercept(pass_on: PassOn) -> Iterator[None]:
    """A context in which calls of `Linear`, `Embedding` and `Conv2d` inside `jax.vmap` return what `pass_on` makes."""

    def see(call: Any, module: Any, x: Array) -> Array:
        y, layer = call(), _describe(module)
        if layer is None:
            return y

        def whole(x: Array, y: Array) -> Array:
            if layer.kind != "conv2d":
                return pass_on(Call(layer, module.weight, x, y))
            x, y = (jnp.moveaxis(value, 1, -1) for value in (x, y))  # (N, C, H, W), and jax's taps are (N, H, W, C)
            return jnp.moveaxis(pass_on(Call(layer, module.weight, x, y)), -1, 1)

        return _unbatch(whole)(x, y) if _is_in_vmap(x, y) else y

    with patch_calls(dict.fromkeys((eqx.nn.Linear, eqx.nn.Embedding, eqx.nn.Conv2d, eqx.nn.Conv), see)):
        yield


def _unbatch(whole: Batch) -> Batch:
    """Return a function of one sample's input and output that calls `whole` with those of all samples.

    Each surrounding `jax.vmap` adds an axis in front.
    """

    @custom_vmap
    def one(x: Array, y: Array) -> Array:
        return y

    @one.def_vmap
    def of_batch(size: int, batched: list[bool], x: Array, y: Array) -> tuple[Array, bool]:
        x, y = (
            value if is_batched else jnp.broadcast_to(value, (size, *value.shape))
            for value, is_batched in zip((x, y), batched, strict=True)
        )
        return _unbatch(whole)(x, y) if _is_in_vmap(x, y) else whole(x, y), True

    return one


def _is_in_vmap(*values: Array) -> bool:
    return any(type(value).__name__ == "BatchTracer" for value in values)  # jax exports no such class


def _describe(module: Any) -> Layer | None:
    """Return a module's layer; None for convolutions that are not ordinary."""
    if isinstance(module, eqx.nn.Embedding):
        return Layer("embedding", ())
    if isinstance(module, eqx.nn.Linear):
        return None if "scalar" in (module.in_features, module.out_features) else Layer("linear", ())
    if module.groups != 1 or {*module.dilation} != {1} or module.padding_mode != "ZEROS":
        return None
    return describe_convolution(module.kernel_size, module.stride, module.padding, transposed=False)
