"""Shampoo's plan: how parameters are cut into blocks, and which roots are refreshed when. Shared by torch and jax."""

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from suite.contract import Plan, UserError
from suite.optimizers._linalg import HOSTED
from suite.optimizers._plan import assign_owners, group_blocks, merge_to_matrix
from suite.optimizers.shampoo import Reshape, Settings

GRAFT_EPSILON = 1e-8  # added to the root of the second moment (Kingma and Ba 2015, algorithm 1)


@dataclass(frozen=True)
class Grid:
    """A tensor of `sides`, cut along each into `counts` blocks of `lengths`, padded with zeros at its ends."""

    sides: tuple[int, ...]
    counts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(self.counts)

    @property
    def padded(self) -> tuple[int, ...]:
        """Sides with their padding."""
        return tuple(count * length for count, length in zip(self.counts, self.lengths, strict=True))


def split_side(side: int, block_size: int) -> tuple[int, int]:
    """Number and length of the blocks of a side: as few as possible, then as even as possible."""
    count = -(-side // block_size)
    return count, -(-side // count)


def merge_sides(shape: tuple[int, ...], how: Reshape, merge_size: int) -> tuple[int, ...]:
    """Return the shape as which a parameter is preconditioned, without sides of length 1; one side or none is a vector.

    `matrix`: the first side, and the product of the rest. `none`: every side. `merge`: neighbours are merged, from the
    last one on, while their product is at most `merge_size`, as `merge_small_dims` of google-research/precondition does
    with filters whose sides are in the opposite order. A parameter with two sides never becomes a vector.
    """
    sides = [side for side in shape if side > 1]
    if how == "none" or len(sides) < 2:
        return tuple(sides)
    merged = [sides[-1]]
    for side in reversed(sides[:-1]):
        if side * merged[0] <= merge_size:
            merged[0] *= side
        else:
            merged.insert(0, side)
    return merge_to_matrix(shape) if how == "matrix" or len(merged) < 2 else tuple(merged)


def _check(settings: Settings) -> None:
    """Check the settings of a lag against each other.

    Raises:
        UserError: with what to set.
    """
    lag, interval, root = settings.lag, settings.inverse_interval, settings.root
    if lag > interval:
        raise UserError(f"optimizer.lag={lag}: one refresh at a time; set 0 to inverse_interval={interval}")
    if lag and settings.stagger:
        raise UserError("optimizer.stagger=true: with lag the host already spreads the work; choose one of the two")
    if lag and root not in HOSTED:
        raise UserError(f"optimizer.root={root}: not on the host; with lag choose one of {', '.join(HOSTED)}")


def _grid(shape: tuple[int, ...], settings: Settings) -> Grid | None:
    """How a parameter of this shape is cut; None if it is not preconditioned."""
    sides, limit = merge_sides(shape, settings.reshape, settings.merge_size), settings.max_size or math.inf
    if len(sides) < 2 or (max(sides) if settings.large == "skip" else min(sides)) > limit:
        return None
    cuts = [split_side(side, settings.block_size) if side <= limit else (1, side) for side in sides]
    counts, lengths = zip(*cuts, strict=True)
    return Grid(sides, counts, lengths)


def split_name(program: str) -> tuple[str, str]:
    """Return the stack of a program, and its action: "" (a whole refresh), turn, take or install."""
    size, order, *what = program.split("/")
    return f"{size}/{order}", "".join(what)


class ShampooPlan(Plan):
    """Blocks of equal shape are in one stack, statistics of equal size in another; refreshes are at fixed intervals.

    Args:
        shapes: of the parameters, by name.
        settings: of the optimizer; the plan reads those that do not change while training.
        tables: names of the embeddings; read if `settings.embeddings` is false.
        world: ranks that share the roots.

    Attributes:
        grids: how each tensor is cut, by name; parameters that are not preconditioned are not in it.
        buckets: the blocks (name, number), numbered row by row, keyed by `<length>x<length>…`.
        stacked: names of the parameters in each bucket's stack, in order.
        factored: the sides of each bucket's blocks that have a statistic.
        counts: matrices in each stack of statistics, by `<size>/<order of the root>`, owned by slices.
        place: stack and rows of the statistics of each side of each bucket, in the order of `factored`.
        turns: with `stagger`, the rows of each stack that are refreshed together, by their turn in the interval.

    Raises:
        UserError: for a `lag` that does not fit the other settings.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        settings: Settings,
        *,
        tables: Collection[str] = (),
        world: int = 1,
    ):
        _check(settings)
        self.world, self.lag, self.stagger = world, settings.lag, settings.stagger
        self.together = not settings.stagger
        self.inverse_interval = settings.inverse_interval
        self.start = settings.start_preconditioning
        limit = settings.max_size or math.inf
        grids = {name: _grid(shape, settings) for name, shape in shapes.items()}
        left_out = () if settings.embeddings else tables
        self.grids = {name: grid for name, grid in grids.items() if grid and name not in left_out}
        keys: dict[Hashable, str] = {}
        self.stacked: dict[str, list[str]] = {}
        for name, grid in self.grids.items():
            key = "x".join(map(str, grid.lengths))
            keys |= {(name, number): key for number in range(grid.blocks)}
            self.stacked.setdefault(key, []).append(name)
        self.buckets = group_blocks(keys, world)
        lengths = {key: self.grids[names[0]].lengths for key, names in self.stacked.items()}
        self.factored = {
            key: [side for side, length in enumerate(sides) if length <= limit] for key, sides in lengths.items()
        }
        self.counts: dict[str, int] = {}
        self.place: dict[tuple[str, int], tuple[str, slice]] = {}
        for key, side in ((key, side) for key, sides in self.factored.items() for side in sides):
            stack = f"{lengths[key][side]}/{settings.exponent or 2 * len(self.factored[key])}"
            first = self.counts.get(stack, 0)
            self.counts[stack] = first + len(self.buckets.members[key])
            self.place[key, side] = stack, slice(first, self.counts[stack])
        self.turns = self._turns()

    def _turns(self) -> dict[str, dict[int, list[int]]]:
        """Return the rows of each stack by their turn; both backends deal the blocks out in the same order."""
        turns: dict[str, dict[int, list[int]]] = {stack: {} for stack in self.counts}
        for number, block in enumerate(sorted(self.buckets.place)):
            key, row = self.buckets.place[block]
            for stack, rows in (self.place[key, side] for side in self.factored[key]):
                turns[stack].setdefault(number % self.inverse_interval, []).append(rows.start + row)
        return {stack: {turn: sorted(rows[turn]) for turn in sorted(rows)} for stack, rows in turns.items()}

    @staticmethod
    def size(stack: str) -> int:
        """Rows of each matrix in a stack."""
        return int(stack.partition("/")[0])

    @staticmethod
    def order(stack: str) -> int:
        """Return p of a stack's roots A^(-1/p): 2 k with k factors (Gupta et al. 2018, algorithm 2), or as set."""
        return int(stack.partition("/")[2])

    def share(self, stack: str) -> int:
        """Matrices of a stack that one rank owns, at most."""
        return -(-self.counts[stack] // self.world)

    def owners(self, count: int) -> tuple[int, ...]:
        """Return the rank that owns each of so many matrices; each rank owns a slice."""
        return assign_owners(count, self.world)

    def rows(self, stack: str) -> list[list[int]]:
        """Return the rows that are refreshed in each of a stack's turns, in order."""
        return list(self.turns[stack].values())

    def taken(self, step: int) -> bool:
        """Return whether all roots are computed from the statistics that include the gradient of `step`."""
        since = step - self.start
        return since >= 0 and since % self.inverse_interval == 0 and not (self.stagger and since)

    @property
    def cycle(self) -> tuple[int, int]:
        """(begin, period): from step `begin` on, `programs` repeats every `period` steps."""
        return self.start + self.lag + 1, self.inverse_interval

    def flying(self, step: int) -> list[str]:
        """With `lag`: the stacks whose roots the host computes before `step`."""
        earlier = range(max(step - self.lag, 0), step)
        return list(self.counts) if any(map(self.taken, earlier)) else []

    def landing(self, step: int) -> list[str]:
        """With `lag`: the stacks whose roots the host has to deliver before `step`."""
        return list(self.counts) if self.lag and self.taken(step - self.lag) else []

    def programs(self, step: int) -> tuple[str, ...]:
        """Return the refreshes of this step, by stack.

        `<stack>` refreshes all its roots, `<stack>/turn` those whose turn it is. With `lag`, `<stack>/take` passes the
        statistics to the host, and `<stack>/install` sends the host's roots to all ranks.
        """
        if self.lag:
            taken = list(self.counts) if self.taken(step) else []
            return (*(f"{stack}/install" for stack in self.landing(step)), *(f"{stack}/take" for stack in taken))
        turn = (step - self.start - 1) % self.inverse_interval
        if self.stagger and step > self.start:
            return tuple(f"{stack}/turn" for stack, turns in self.turns.items() if turn in turns)
        return tuple(self.counts) if self.taken(step) else ()


make = ShampooPlan
