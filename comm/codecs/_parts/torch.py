"""Kernels over long arrays in torch.

A kernel is a function of arrays of equal length that writes its results into some of them. Eager torch reads and writes
whole arrays at every operation. A kernel of ten operations is therefore called for one part after another, each of
which fits into the cache. Compiled, it is one loop over whole arrays, made once for all lengths.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PART, WHOLE = 2**17, 2**20  # rows of one part, and values in all its arrays, at most


@torch.no_grad()
def by_parts(
    kernel: Callable[..., None], *arrays: Tensor, constants: tuple[Tensor, ...] = (), compiles: bool = False
) -> None:
    """Call a kernel on all of some arrays.

    Args:
        kernel: the same function every time, or it would be compiled again.
        arrays: of equal length along the first axis.
        constants: arrays that every part needs as a whole.
        compiles: whether by `torch.compile`.
    """
    first = arrays[0]
    if not len(first):
        return
    if compiles and len(first) > 1:  # torch would compile length 1 separately
        # no views: torch would compile again for each offset of a view in its base
        _compiled(kernel)(*(torch.from_dlpack(array.detach()) for array in (*arrays, *constants)))
    elif not is_on_cpu(first):
        kernel(*arrays, *constants)
    else:
        rows = max(1, min(PART, WHOLE // max(1, sum(array[:1].numel() for array in arrays))))
        for parts in zip(*(array.split(rows) for array in arrays), strict=True):
            kernel(*parts, *constants)


def is_on_cpu(values: Tensor) -> bool:
    """Return whether an array is in the memory of a CPU; other devices take whole arrays at once."""
    return values.device.type == "cpu"


def may_look(values: Tensor) -> bool:
    """Return whether a kernel may look at values to choose a faster way: not in compiled code, nor if a host waits."""
    return not torch.compiler.is_compiling() and is_on_cpu(values)


@functools.cache
def _compiled(kernel: Callable[..., None]) -> Any:
    return torch.compile(kernel, dynamic=True, fullgraph=True)


def find_largest(values: Tensor) -> Tensor:
    """Bits of the largest magnitude of (n,) float32 values, a NaN being above all; 0 of none."""
    if not len(values):
        return values.new_zeros((), dtype=torch.int32)
    return torch.stack(values.aminmax()).abs().view(torch.int32).amax()
