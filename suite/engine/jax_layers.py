"""Layers of flax and equinox models, found while a loss runs."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
from jax import Array
from jax.core import Tracer

from suite.contract import Layer, UserError
from suite.engine.jax_modules import Call
from suite.engine.layers import Layers
from suite.optimizers._base.jax import name_leaves

Tap = Callable[[str, Array, Array], Array]
REASON = "of no module that is supported; a convolution must be 2-D and square, without groups and dilation"


def layers_of(loss: Callable[..., Any], params: Any, *arguments: Any) -> Layers:
    """Return the layers that a loss calls and that K-FAC, K-BFGS, Muon and VOGN support, by path of their parameters.

    These are `Dense`, `Embed` and ordinary 2-D `Conv` of flax (linen and nnx), and `Linear`, `Embedding` and ordinary
    `Conv2d` of equinox, whose layers must be called inside `jax.vmap`. The loss is traced, not computed.

    Args:
        loss: (params, *arguments) to a number.
        params: of the model, as the loss takes them.
        arguments: of the loss.

    Raises:
        UserError: a layer is called where its weight cannot be recognised.
    """
    found: dict[str, Layer] = {}
    names = list(name_leaves(params))

    def trace(params: Any) -> Any:
        def note(name: str, layer: Layer, x: Array, y: Array) -> Array:
            bias = tuple(other for other in names if other == (f"{name}.bias" if name else "bias"))
            weight = next(other for other in names if other.rpartition(".")[0] == name and other not in bias)
            found[name] = replace(layer, parameters=(weight, *bias))
            return y

        with _intercept(params, note):
            return loss(params, *arguments)

    jax.eval_shape(trace, params)
    covered = {name for layer in found.values() for name in layer.parameters}
    return Layers(found, dict.fromkeys((name for name in names if name not in covered), REASON))


@contextlib.contextmanager
def tap_modules(params: Any, tap: Tap) -> Iterator[None]:
    """A context in which flax's and equinox's layers pass their inputs and outputs to `tap`, and return its result."""
    with _intercept(params, lambda name, layer, x, y: tap(name, x, y)):
        yield


@contextlib.contextmanager
def _intercept(params: Any, seen: Callable[[str, Layer, Array, Array], Array]) -> Iterator[None]:
    """A context in which every call of a layer whose weight is a leaf of `params` goes through `seen`."""
    leaves = jax.tree.leaves(params)
    paths = {id(leaf): name.rpartition(".")[0] for leaf, name in zip(leaves, name_leaves(params), strict=True)}

    def pass_on(call: Call) -> Array:
        name = paths.get(id(call.weight))
        if name is None and isinstance(call.weight, Tracer):
            raise UserError(
                f"a layer of kind {call.layer.kind} has a weight that is no leaf of the parameters: it is cast, or the "
                "layer is called inside jax.jit, jax.checkpoint or jax.lax.scan, as flax's and equinox's versions of "
                "these do; call it outside, or name the layers by hand and take `tap` as an argument of the loss"
            )
        return call.y if name is None else seen(name, call.layer, call.x, call.y)

    with contextlib.ExitStack() as stack:
        if "flax" in sys.modules:
            from suite.engine import jax_flax

            stack.enter_context(jax_flax.intercept(pass_on))
        if "equinox" in sys.modules:
            from suite.engine import jax_equinox

            stack.enter_context(jax_equinox.intercept(pass_on))
        yield
