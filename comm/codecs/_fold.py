"""Reductions of long arrays in one order, the same in every framework; one text for NumPy, torch and jax.

An array is cut into sixteen parts of equal length, which are combined one after another, element by element; what is
left over is appended, and so on until one is left. XLA on CPUs is ten times faster at this than at its own reductions,
which is why jax takes its largest values and counts so, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

PARTS = 16


Combine = Callable[[Any, Any], Any]
Each = Callable[[Any], Any]


def _same(part: Any) -> Any:
    return part


def level(combine: Combine, each: Each, parts: Sequence[Any]) -> Any:
    """Arrays of equal length, one after another."""
    found = each(parts[0])
    for part in parts[1:]:
        found = combine(found, each(part))
    return found


def fold(xp: Any, values: Any, combine: Combine, each: Each = _same, level: Callable[..., Any] = level) -> Any:
    """All of (…, n) values, at least one, combined in pairs; (…).

    Args:
        xp: `numpy`, `torch` or `jax.numpy`.
        values: their last axis is folded.
        combine: two arrays of equal length, element by element.
        each: what is done to the values before, element by element: to each part, or XLA would store the whole array.
        level: what combines the parts.
    """
    while (count := values.shape[-1]) > 1:
        parts = min(PARTS, count)
        length = count // parts
        found = level(combine, each, [values[..., part * length : (part + 1) * length] for part in range(parts)])
        rest = values[..., parts * length :]
        values = xp.concatenate([found, each(rest)], -1) if rest.shape[-1] else found
        each = _same
    return each(values)[..., 0]
