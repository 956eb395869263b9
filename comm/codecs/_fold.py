"""Reductions of long arrays in an order that is the same in NumPy, torch and jax.

An array is cut into sixteen parts of equal length, which are combined one after another, element by element; the rest
is appended, and so on until one value is left. XLA on CPUs is ten times faster at this than at its own reductions, so
that jax also computes maxima and counts in this way.
"""

from collections.abc import Callable, Sequence
from typing import Any

PARTS = 16


Combine = Callable[[Any, Any], Any]
Transform = Callable[[Any], Any]


def _same(part: Any) -> Any:
    return part


def combine_parts(combine: Combine, transform: Transform, parts: Sequence[Any]) -> Any:
    """Combine arrays of equal length one after another."""
    combined = transform(parts[0])
    for part in parts[1:]:
        combined = combine(combined, transform(part))
    return combined


def fold_values(
    xp: Any, values: Any, combine: Combine, transform: Transform = _same, level: Callable[..., Any] = combine_parts
) -> Any:
    """Reduce the last axis of (…, n) values, n at least 1, to (…).

    Args:
        xp: `numpy`, `torch` or `jax.numpy`.
        values: the array.
        combine: combines two arrays of equal length, element by element.
        transform: applied to the values before, element by element. It is applied part by part, because XLA would store
            the whole transformed array.
        level: combines the parts.
    """
    while (count := values.shape[-1]) > 1:
        parts = min(PARTS, count)
        length = count // parts
        slices = [values[..., part * length : (part + 1) * length] for part in range(parts)]
        combined = level(combine, transform, slices)
        rest = values[..., parts * length :]
        values = xp.concatenate([combined, transform(rest)], -1) if rest.shape[-1] else combined
        transform = _same
    return transform(values)[..., 0]
