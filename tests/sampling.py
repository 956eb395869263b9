"""Sweeps: `make test` tries each value of each axis, `make test-all` every combination."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


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
    listed = list(values)
    kept = {number * len(listed) // count for number in range(count)}
    rows = [value if isinstance(value, tuple) else (value,) for value in listed]
    return [pytest.param(*row, marks=[] if place in kept else pytest.mark.slow) for place, row in enumerate(rows)]
