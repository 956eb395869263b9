"""Calls of modules of flax and equinox, as `suite.engine.jax_layers` sees them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from jax import Array

from suite.contract import Layer

Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Call:
    """One call of a module that may be a layer.

    Attributes:
        layer: the layer, without the names of its parameters.
        weight: the weight, as the module holds it.
        x: the input, as `suite.contract.Layer` describes it.
        y: the output, likewise.
    """

    layer: Layer
    weight: Array
    x: Array
    y: Array


PassOn = Callable[[Call], Array]


def describe_convolution(
    kernel: Sequence[int], strides: int | Sequence[int] | None, padding: Padding, *, transposed: bool
) -> Layer | None:
    """Return the layer of a 2-D convolution without groups and dilation; None if it is not square.

    Args:
        kernel: size.
        strides: of the windows; None is 1.
        padding: with zeros: `VALID`, `SAME`, or numbers for both axes and both sides.
        transposed: whether the weight is (rows, columns, in, out).
    """
    sides = {*kernel}
    steps = {1} if strides is None else {strides} if isinstance(strides, int) else {*strides}
    if len(kernel) != 2 or len(sides) > 1 or len(steps) > 1:
        return None
    (side,), (step,) = sides, steps
    if padding == "SAME" and (step > 1 or side % 2 == 0):
        return None  # more zeros on one side than on the other
    if isinstance(padding, str):
        zeros = {(side - 1) // 2} if padding == "SAME" else {0} if padding == "VALID" else set[int]()
    elif isinstance(padding, int):
        zeros = {padding}
    else:
        zeros = {zero for pair in padding for zero in ([pair] if isinstance(pair, int) else pair)}
    return Layer("conv2d", (), side, step, zeros.pop(), transposed) if len(zeros) == 1 else None


@contextlib.contextmanager
def patch_calls(replace: dict[type, Callable[[Any, Any, Array], Array]]) -> Iterator[None]:
    """A context in which `__call__` of classes is replaced by a function of (the old call, the module, its input)."""
    with contextlib.ExitStack() as stack:
        for kind, new in replace.items():
            old: Any = kind.__call__

            def call(self: Any, *inputs: Any, new: Any = new, old: Any = old, **named: Any) -> Array:
                return new(lambda: old(self, *inputs, **named), self, (*inputs, *named.values())[0])

            stack.enter_context(mock.patch.object(kind, "__call__", call))
        yield
