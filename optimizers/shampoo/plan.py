"""Shampoo's plan: how parameters are cut into blocks, and when roots are refreshed. Shared by torch and jax."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from suite.contract import Plan, UserError
from suite.optimizers._linalg import METHODS
from suite.optimizers._plan import bucket, merge

GRAFTS = ("sgd", "adagrad", "rmsprop", "adam")
GRAFT_EPSILON = 1e-8  # added to the root of the second moment (Kingma and Ba 2015, algorithm 1)
ORDER = 4  # of the inverse roots: -1 / (2 k) for tensors of order k = 2 (Gupta et al. 2018, algorithm 2)


@dataclass(frozen=True)
class Grid:
    """A (rows, columns) matrix cut into down × across blocks of (height, width), padded with zeros at its ends."""

    rows: int
    columns: int
    down: int
    across: int
    height: int
    width: int

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self.down * self.across


def split(side: int, block_size: int) -> tuple[int, int]:
    """How many blocks, and of what length: as few as possible, and then as even as possible."""
    count = -(-side // block_size)
    return count, -(-side // count)


class ShampooPlan(Plan):
    """Blocks of equal shape in one stack, its roots owned slice by slice; refreshes every so many steps.

    Attributes:
        grids: how each matrix is cut, by name; vectors are not in it.
        buckets: the blocks (name, number), numbered row by row, keyed by `<height>x<width>`.
        stacked: names of the parameters in each bucket's stack, in order.
        sizes: rows of each stack of statistics, by `<bucket>/left` (L) and `<bucket>/right` (R): a program each.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        world: int,
        block_size: int,
        inverse_interval: int,
        start_preconditioning: int,
        graft: str,
        root: str,
    ):
        if graft not in GRAFTS:
            raise UserError(f"optimizer.graft={graft}: unknown; type one of {', '.join(GRAFTS)}")
        if root not in METHODS:
            raise UserError(f"optimizer.root={root}: unknown; type one of {', '.join(METHODS)}")
        self.inverse_interval = inverse_interval
        self.start = max(start_preconditioning, 1)  # before the first update there is nothing to take a root of
        self.grids: dict[str, Grid] = {}
        for name, shape in shapes.items():
            sides = merge(shape)
            if len(sides) == 2:
                (down, height), (across, width) = (split(side, block_size) for side in sides)
                self.grids[name] = Grid(*sides, down, across, height, width)
        keys: dict[Hashable, str] = {}
        self.stacked: dict[str, list[str]] = {}
        for name, grid in self.grids.items():
            key = f"{grid.height}x{grid.width}"
            keys |= {(name, number): key for number in range(grid.blocks)}
            self.stacked.setdefault(key, []).append(name)
        self.buckets = bucket(keys, world)
        self.sizes: dict[str, int] = {}
        for key in self.buckets.members:
            self.sizes[f"{key}/left"], self.sizes[f"{key}/right"] = map(int, key.split("x"))

    def count(self, stack: str) -> int:
        """Matrices in a stack of statistics."""
        return len(self.buckets.members[stack.partition("/")[0]])

    def filler(self, stack: str) -> int:
        """Rows that make a stack a multiple of the ranks."""
        return self.buckets.filler(stack.partition("/")[0])

    def programs(self, step: int) -> tuple[str, ...]:
        """The refreshes of this step, a program for each stack: jaxlib may deadlock on several sizes in one."""
        due = step >= self.start and (step - self.start) % self.inverse_interval == 0
        return tuple(self.sizes) if due else ()
