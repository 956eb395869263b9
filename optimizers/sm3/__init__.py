"""SM3: AdaGrad with one accumulator for each slice of a tensor instead of one for each element.

A tensor's elements are covered by its slices: rows and columns of a matrix, and so on along every axis. Each slice
holds μ, and the least μ of an element's slices stands for the sum of its squared gradients:

SM3-I: μ(slice) ← μ(slice) + max g²;  ν = least μ.    SM3-II: ν = least μ + g²;  μ(slice) ← max ν, a closer bound.

Then m ← β m + (1 - β) g / √ν and w ← w - η m, with the convention 0/0 = 0; without momentum nothing but μ is held.
In vectors and scalars each element is its own slice, which is AdaGrad. g holds the L2 decay λ w of matrices and
filters.

Without momentum and decay, a gradient given by rows is treated as by the authors' code: its rows are its only slices,
and others are not touched. That differs from the same gradient filled up with zeros, which has columns too; a result
must not depend on a table's placement, so the suite does not split tables for it (no "rows" in NEEDS).
A gradient that is not finite is not hidden: it spoils its slices for good, and through them the tensor.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal

from suite.contract import Rows
from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, StateOfTable, Value

SUMMARY = "SM3-I and SM3-II (Anil et al. 2019): AdaGrad in sublinear memory"
CITATION = "Anil, Gupta, Koren, Singer: Memory-Efficient Adaptive Optimization, NeurIPS 2019, arXiv:1901.11150"
NEEDS = ()
EPSILON = 1e-30  # 0/√(0 + ε) = 0; google-research/sm3's constant


class Settings(Declared):
    """momentum: the authors' tests (google-research/sm3)."""

    lr: float = setting(0.1, "learning rate η", at_least=0, scheduled=True, search=(0.01, 1.0, "log"))
    momentum: float = setting(
        0.9,
        "β, of the scaled gradients' average; 0: only μ is stored",
        at_least=0,
        at_most=1,
        scheduled=True,
    )
    weight_decay: float = setting(
        0.0, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    variant: Literal["I", "II"] = setting("II", "SM3-I or SM3-II, which has the closer bound")


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step."""
    grads = ops.add_decay(grads, weights, hyper.weight_decay)
    bounds, own = _bound(ops, state["covers"], grads, hyper.variant)
    direction, covers = ops.normalize(bounds, grads, EPSILON), {"covers": own}
    if not state["velocity"]:
        return ops.move(weights, direction, hyper.lr), covers
    velocity = ops.average(state["velocity"], direction, hyper.momentum)
    return ops.move(weights, velocity, hyper.lr), covers | {"velocity": velocity}


def update_rows(
    ops: Ops[Value], table: Value, rows: Rows, state: StateOfTable, hyper: Settings
) -> tuple[Any, StateOfTable]:
    """One step of some rows of a table, which are its only slices."""
    ids, values = rows = ops.merge_rows(rows)
    (cover, *others), squares = state["covers"], values * values
    before = cover[ids]
    largest = next(_find_largest(ops, squares))
    cover = ops.accumulate_rows(cover, Rows(ids, largest))  # in SM3-II too: max(μ + g²) = μ + max g²
    (root,) = ops.root([before + squares if hyper.variant == "II" else cover[ids]], inside=EPSILON)
    return ops.move_rows(table, Rows(ids, values / root), hyper.lr), {"covers": [cover, *others]}


def _bound(
    ops: Ops[Value], covers: list[list[Value]], grads: list[Value], variant: str
) -> tuple[list[Value], list[list[Value]]]:
    """Return ν of every element, in new arrays, and the new μ."""
    if variant == "II":
        bounds = ops.accumulate_squares([_find_least(ops, own) for own in covers], grads)
        pairs = zip(covers, bounds, strict=True)
        return bounds, [list(map(ops.assign, own, _find_largest(ops, bound))) for own, bound in pairs]
    largest = [list(_find_largest(ops, grad * grad)) for grad in grads]
    covers = [
        [ops.assign(cover, cover + most) for cover, most in zip(*pair, strict=True)]
        for pair in zip(covers, largest, strict=True)
    ]
    return [_find_least(ops, own) for own in covers], covers


def _find_least(ops: Ops[Value], covers: list[Value]) -> Value:
    """Return the least μ of each element's slices, as a new array also for a vector, which has one cover.

    The last axes are first: only the last minimum has full size.
    """
    last, *others = reversed(covers)
    return reduce(ops.xp.minimum, others or [last], last)


def _find_largest(ops: Ops[Value], value: Value) -> Iterator[Value]:
    """Yield every slice's largest element, by axis. Each axis is reduced before the next: two passes over the whole."""
    reduce_axes = ops.xp.sum if 0 in value.shape else ops.xp.amax  # of no elements, none is the largest: 0
    for axis in range(value.ndim - 1):
        yield reduce_axes(value, axis=tuple(range(axis + 1, value.ndim)), keepdims=True)
        value = reduce_axes(value, axis=axis, keepdims=True)
    yield value


def shape_covers(shape: Sequence[int]) -> list[list[int]]:
    """Return the shapes of μ, one for each axis: the parameter's length along this axis, and 1 along the others."""
    return [[n if i == axis else 1 for i, n in enumerate(shape)] for axis in range(max(len(shape), 1))]


RULE = Rule("sm3", Settings, update, lambda _: {"covers": 0.0}, update_rows, velocity=True, shapes=shape_covers)
