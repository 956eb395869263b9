"""Shampoo's plan: how parameters are cut into blocks, and which roots are refreshed when. Shared by torch and jax."""

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from suite.contract import Plan, UserError
from suite.optimizers._linalg import HOSTED, METHODS
from suite.optimizers._plan import bucket, dealt, merge

GRAFTS = ("sgd", "adagrad", "rmsprop", "adam")
GRAFT_EPSILON = 1e-8  # added to the root of the second moment (Kingma and Ba 2015, algorithm 1)
RESHAPES = ("matrix", "merge", "none")
LARGE = ("one_sided", "skip")


@dataclass(frozen=True)
class Grid:
    """A tensor of `sides`, cut along each into `counts` blocks of `lengths`, padded with zeros at its ends."""

    sides: tuple[int, ...]
    counts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many there are."""
        return math.prod(self.counts)

    @property
    def padded(self) -> tuple[int, ...]:
        """The sides with their padding."""
        return tuple(count * length for count, length in zip(self.counts, self.lengths, strict=True))


def split(side: int, block_size: int) -> tuple[int, int]:
    """How many blocks, and of what length: as few as possible, and then as even as possible."""
    count = -(-side // block_size)
    return count, -(-side // count)


def reshaped(shape: tuple[int, ...], how: str, merge_size: int) -> tuple[int, ...]:
    """The shape a parameter is treated in; sides of length 1 are left out, fewer than two make a vector.

    `matrix`: first side against the rest. `none`: every side. `merge`: neighbours are merged from the last one on
    while their product is at most `merge_size`, as `merge_small_dims` of google-research/precondition does with
    filters whose sides stand the other way round; but what has two sides never becomes a vector.
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
    return merge(shape) if how == "matrix" or len(merged) < 2 else tuple(merged)


def split_name(program: str) -> tuple[str, str]:
    """A program's stack, and what it does with it: "" for a whole refresh."""
    size, order, *what = program.split("/")
    return f"{size}/{order}", "".join(what)


class ShampooPlan(Plan):
    """Blocks of equal shape in one stack, and so are statistics of equal size; refreshes every so many steps.

    Attributes:
        grids: how each tensor is cut, by name; what is not preconditioned is not in it.
        buckets: the blocks (name, number), numbered row by row, keyed by `<length>x<length>…`.
        stacked: names of the parameters in each bucket's stack, in order.
        factored: the sides of each bucket's blocks that have a statistic.
        counts: matrices in each stack of statistics, by `<size>/<order of the root>`, owned by slices.
        place: stack and rows of the statistics of each bucket's each side, in the order of `factored`.
        turns: with `stagger`, the rows of each stack that are refreshed together, by their turn in the interval.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        tables: Collection[str] = (),
        *,
        world: int = 1,
        block_size: int = 128,
        reshape: str = "matrix",
        merge_size: int = 4096,
        exponent: int | None = None,
        max_size: int | None = None,
        large: str = "one_sided",
        embeddings: bool = True,
        inverse_interval: int = 1,
        start_preconditioning: int = 5,
        lag: int = 0,
        stagger: bool = False,
        graft: str = "sgd",
        root: str = "auto",
    ):
        known = ("graft", graft, GRAFTS), ("root", root, METHODS), ("reshape", reshape, RESHAPES)
        for name, value, choices in (*known, ("large", large, LARGE)):
            if value not in choices:
                raise UserError(f"optimizer.{name}={value}: unknown; type one of {', '.join(choices)}")
        if not 0 <= lag <= inverse_interval:
            raise UserError(
                f"optimizer.lag={lag}: one refresh at a time; type 0 to inverse_interval={inverse_interval}"
            )
        if lag and stagger:
            raise UserError("optimizer.stagger=true: with lag the host spreads the work already; type one of the two")
        if lag and root not in HOSTED:
            raise UserError(f"optimizer.root={root}: not on the host; with lag type one of {', '.join(HOSTED)}")
        self.world, self.lag, self.stagger = world, lag, stagger
        self.together = not stagger
        self.inverse_interval = inverse_interval
        self.start = max(start_preconditioning, 1)  # before the first update there is nothing to take a root of
        limit = max_size or math.inf
        self.grids: dict[str, Grid] = {}
        for name, shape in shapes.items():
            sides = reshaped(shape, reshape, merge_size)
            longest = max(sides, default=0) if large == "skip" else min(sides, default=0)
            if len(sides) > 1 and longest <= limit and (embeddings or name not in tables):
                cuts = [split(side, block_size) if side <= limit else (1, side) for side in sides]
                counts, lengths = zip(*cuts, strict=True)
                self.grids[name] = Grid(sides, counts, lengths)
        keys: dict[Hashable, str] = {}
        self.stacked: dict[str, list[str]] = {}
        for name, grid in self.grids.items():
            key = "x".join(map(str, grid.lengths))
            keys |= {(name, number): key for number in range(grid.blocks)}
            self.stacked.setdefault(key, []).append(name)
        self.buckets = bucket(keys, world)
        lengths = {key: self.grids[names[0]].lengths for key, names in self.stacked.items()}
        self.factored = {key: [i for i, length in enumerate(each) if length <= limit] for key, each in lengths.items()}
        self.counts: dict[str, int] = {}
        self.place: dict[tuple[str, int], tuple[str, slice]] = {}
        for key, side in ((key, side) for key, sides in self.factored.items() for side in sides):
            stack = f"{lengths[key][side]}/{exponent or 2 * len(self.factored[key])}"
            first = self.counts.get(stack, 0)
            self.counts[stack] = first + len(self.buckets.members[key])
            self.place[key, side] = stack, slice(first, self.counts[stack])
        turns: dict[str, dict[int, list[int]]] = {stack: {} for stack in self.counts}
        for number, block in enumerate(sorted(self.buckets.place)):  # dealt out like cards, in either backend's order
            key, row = self.buckets.place[block]
            for stack, rows in (self.place[key, side] for side in self.factored[key]):
                turns[stack].setdefault(number % inverse_interval, []).append(rows.start + row)
        self.turns = {at: {turn: sorted(rows) for turn, rows in sorted(each.items())} for at, each in turns.items()}

    @staticmethod
    def size(stack: str) -> int:
        """Rows of each matrix in a stack."""
        return int(stack.partition("/")[0])

    @staticmethod
    def order(stack: str) -> int:
        """P of a stack's roots A^(-1/p): 2 k with k factors (Gupta et al. 2018, algorithm 2), unless overridden."""
        return int(stack.partition("/")[2])

    def share(self, stack: str) -> int:
        """Matrices of a stack that one rank owns, at most."""
        return -(-self.counts[stack] // self.world)

    def owners(self, count: int) -> tuple[int, ...]:
        """The rank that owns each of so many matrices, a slice each."""
        return dealt(count, self.world)

    def rows(self, stack: str) -> list[list[int]]:
        """The rows that are refreshed in each of a stack's turns, in order."""
        return list(self.turns[stack].values())

    def taken(self, step: int) -> bool:
        """Whether roots of the statistics before `step` are asked for, of all stacks."""
        since = step - self.start
        return since >= 0 and since % self.inverse_interval == 0 and not (self.stagger and since)

    def flying(self, step: int) -> list[str]:
        """With `lag`: the stacks whose roots the host may work at before `step`, or has to hand in by then."""
        behind = range(max(step - self.lag, 0), step)
        return list(self.counts) if any(self.taken(at) for at in behind) else []

    def landing(self, step: int) -> list[str]:
        """With `lag`: the stacks whose roots the host hands in before `step`."""
        return list(self.counts) if self.lag and self.taken(step - self.lag) else []

    def programs(self, step: int) -> tuple[str, ...]:
        """The refreshes of this step, by stack.

        `<stack>` takes all its roots, `<stack>/turn` those whose turn it is. With `lag`, `<stack>/take` hands
        statistics to the host and `<stack>/install` spreads the roots that came back.
        """
        if self.lag:
            asked = list(self.counts) if self.taken(step) else []
            return (*(f"{at}/install" for at in self.landing(step)), *(f"{at}/take" for at in asked))
        turn = (step - self.start - 1) % self.inverse_interval
        if self.stagger and step > self.start:
            return tuple(f"{stack}/turn" for stack, turns in self.turns.items() if turn in turns)
        return tuple(self.counts) if self.taken(step) else ()
