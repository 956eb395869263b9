"""Reductions of long arrays in one order, the same in every framework; one text for NumPy, torch and jax.

An array is cut into sixteen parts of equal length, which are combined one after another, element by element; what is
left over is appended, and so on until one is left. XLA on CPUs is ten times faster at this than at its own reductions,
which is why jax takes its largest values and counts so, too.
"""

from collections.abc import Callable
from typing import Any

PARTS = 16


def _same(part: Any) -> Any:
    return part


def fold(xp: Any, values: Any, combine: Callable[[Any, Any], Any], each: Callable[[Any], Any] = _same) -> Any:
    """All of (n,) values, at least one, combined in pairs; ().

    Args:
        xp: `numpy`, `torch` or `jax.numpy`.
        values: flat.
        combine: two arrays of equal length, element by element.
        each: what is done to the values before, element by element: to each part, or XLA would store the whole array.
    """
    while (count := len(values)) > 1:
        parts = min(PARTS, count)
        length = count // parts
        found = each(values[:length])
        for part in range(1, parts):
            found = combine(found, each(values[part * length : (part + 1) * length]))
        rest = values[parts * length :]
        values = xp.concatenate([found, each(rest)]) if len(rest) else found
        each = _same
    return each(values)[0]
