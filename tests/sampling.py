"""Cases of a sweep that `make test` runs; `make test-all` runs every case.

`@pytest.mark.sample(count)` keeps `count` cases of a test, and with `keep=("int8-",)` also one whose name contains that
text; `mostly_torch` keeps one of two backends, and `sampled` each value of each axis. The other cases are slow tests.
"""

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import pytest

mostly_torch = pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])


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


def mark_rest(items: Iterable[pytest.Item]) -> None:
    """Mark the cases slow that a test's mark `sample` does not keep: a fixed choice, which follows from their names."""
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in sweeps.values():
        mark = cases[0].get_closest_marker("sample")
        assert mark
        cases.sort(key=lambda item: hashlib.sha1(item.name.encode()).digest())
        needed = [next((item for item in cases if text in item.name), None) for text in mark.kwargs.get("keep", ())]
        for item in cases[mark.args[0] :]:
            if item not in needed:
                item.add_marker(pytest.mark.slow)
