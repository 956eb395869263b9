"""Sweeps: `make test` tries each value of each axis, `make test-all` every combination."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

PARAMETERS = type(pytest.param())  # also a tuple


def sampled(*axes: Iterable[Any]) -> list[Any]:
    """All combinations, as pytest's parameters; those without the longest axis's values in turn are slow.

    A value that is a tuple stands for several parameters.
    """
    values = [list(axis) for axis in axes]
    longest = max(range(len(values)), key=lambda axis: len(values[axis]))
    found = []
    for places in itertools.product(*(range(len(axis)) for axis in values)):
        rest, kept = places[longest], True
        for place, axis in zip(places, values, strict=True):
            if axis is not values[longest]:
                kept &= place == rest % len(axis)
                rest += rest // len(axis)  # so that two axes of one length do not move together
        chosen = [axis[place] for place, axis in zip(places, values, strict=True)]
        flat = [part for value in chosen for part in (value if isinstance(value, tuple) else (value,))]
        found.append(pytest.param(*flat, marks=[] if kept else [pytest.mark.slow]))
    return found


def spread(values: Iterable[Any], count: int) -> list[Any]:
    """`count` of the values, evenly spread from the first on; the others are slow."""
    rows = [value if isinstance(value, PARAMETERS) else to_parameters(value) for value in values]
    kept = {number * len(rows) // count for number in range(count)}
    slow = [pytest.mark.slow]
    return [row if place in kept else row._replace(marks=[*row.marks, *slow]) for place, row in enumerate(rows)]


def to_parameters(value: Any) -> Any:
    """A value, or a tuple of several parameters, as pytest's parameters."""
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
