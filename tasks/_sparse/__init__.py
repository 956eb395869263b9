"""Matrices with blocks of zeros that are not stored: where the others stand, and how they move while training.

After Dietrich et al.: Towards Structured Dynamic Sparse Pre-Training of BERT (arXiv:2108.06277), algorithm 1: the run
is cut into intervals; after each, of every matrix, the share p(t) of the blocks with the smallest L1 norm is taken out,
and as many empty places are filled, at random or where the gradient is largest (Evci et al.: Rigging the Lottery, ICML
2020, arXiv:1911.11134). New blocks and what the optimizer knew of them are zero. A place given up may not be filled
again in the same move, as in the code of Dietrich et al.

A block keeps its place in storage: what moves is the number in `pattern` that says where it stands. So nothing is
sorted, and all shapes stay the same. Everything here is NumPy and draws from `suite.stream`: every rank and both
backends find the same pattern. The products are in torch.py and jax.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from suite import stream
from suite.contract import UserError

KINDS = ("static", "dynamic")
PATTERNS = ("random", "balanced")
GROWTHS = ("random", "gradient")
EXECUTIONS = ("auto", "blocks", "dense")
NOTHING = 1e-12  # of the largest norm of a block
WORTHWHILE = 8  # smallest block multiplied as a block on a CPU; below, one dense product wins (tests/bench)

Shape = tuple[int, int]


@dataclass(frozen=True)
class Sparsity:
    """How sparse matrices are, and how they change.

    Attributes:
        kind: `static`, or `dynamic`: blocks move.
        share: of a matrix's blocks that are zero, s.
        block: rows and columns of a block, B.
        pattern: `random`, or `balanced`: equally many blocks in each row of blocks. The latter is not the paper's.
        growth: what decides the new places, `random` or `gradient`.
        ratio: share of the blocks that move at first, p(0); it falls to 0 along half a cosine.
        intervals: pieces the run is cut into, n; blocks move between them, n - 1 times.
        steps: of the whole run, T.
        execution: `blocks`, `dense`: fill in the zeros and multiply as usual, or `auto`.
        scale_rate: multiply the learning rate by the paper's rule.
    """

    kind: str
    share: float
    block: int
    pattern: str
    growth: str
    ratio: float
    intervals: int
    steps: int
    execution: str
    scale_rate: bool

    def __post_init__(self) -> None:
        words = {"pattern": PATTERNS, "growth": GROWTHS, "execution": EXECUTIONS}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise UserError(f"task.sparse.{name}={getattr(self, name)}: unknown; one of {', '.join(known)}")
        if not 0.0 < self.share < 1.0:
            raise UserError(
                f"task.sparse.share={self.share}: the share of zeros, above 0 and below 1; task.sparsity=dense for none"
            )
        if not 0.0 <= self.ratio <= 1.0:
            raise UserError(f"task.sparse.ratio={self.ratio}: must lie between 0 and 1")
        for name in ("block", "intervals", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"task.sparse.{name}={getattr(self, name)}: must be at least 1")

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern} blocks of {self.block} × {self.block}, {100 * self.share:g} % zero"

    @property
    def rate(self) -> float:
        """η(s) / η(0) = exp(1.969 s² + 0.2905 s), Dietrich et al., fitted to sweeps of static sparsity; 6.4 at 0.9."""
        return math.exp(1.969 * self.share**2 + 0.2905 * self.share) if self.scale_rate else 1.0

    def grid(self, name: str, shape: Shape) -> Shape:
        """Rows and columns of blocks.

        Raises:
            UserError: where the blocks do not fit.
        """
        if any(size % self.block for size in shape):
            raise UserError(
                f"task.sparse.block={self.block}: {name} is {shape[0]} × {shape[1]}, which it does not divide"
            )
        return shape[0] // self.block, shape[1] // self.block

    def count(self, name: str, shape: Shape) -> int:
        """Blocks that are stored, at least one (in each row, where balanced)."""
        rows, columns = self.grid(name, shape)
        if self.pattern == "balanced":
            return rows * max(1, round((1.0 - self.share) * columns))
        return max(1, round((1.0 - self.share) * rows * columns))

    def start(self, seed: int, name: str, shape: Shape) -> np.ndarray:
        """Where the blocks stand at first, (n,) int32, ascending."""
        grid, count = self.grid(name, shape), self.count(name, shape)
        draws = stream.bits(np, (seed, 0), f"{name}.pattern", np.arange(math.prod(grid)))
        if self.pattern == "balanced":
            each = np.sort(draws.reshape(grid).argsort(1, kind="stable")[:, : count // grid[0]], 1)
            return (each + np.arange(grid[0])[:, None] * grid[1]).reshape(-1).astype(np.int32)
        return np.sort(draws.argsort(kind="stable")[:count]).astype(np.int32)

    def moves(self, step: int) -> bool:
        """Whether an interval ends with update `step` (from 0); nothing moves after the last one."""
        done = step + 1
        ends = done * self.intervals // self.steps > step * self.intervals // self.steps
        return self.kind == "dynamic" and ends and done < self.steps

    def moving(self, step: int, count: int, free: int) -> int:
        """How many of `count` blocks move after update `step`, p(t) n; there are `free` empty places."""
        ratio = self.ratio * 0.5 * (1.0 + math.cos(math.pi * (step + 1) / self.steps))
        return min(round(ratio * count), free)

    def move(
        self,
        seed: int,
        step: int,
        name: str,
        shape: Shape,
        weight: np.ndarray,
        pattern: np.ndarray,
        gradient: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the blocks of one matrix (n, b, b) stand next (n,), and which of them moved; see `suite.contract`."""
        grid = self.grid(name, shape)
        places = math.prod(grid)
        norms = np.abs(weight.astype(np.float64)).sum((1, 2))
        moving = self.moving(step, len(pattern), places - len(pattern))
        # a norm that is only rounding counts as 0, and those that leave are taken by place in storage: else the last
        # bit of a gradient would decide, which is not the same on any number of devices
        norms[norms < NOTHING * norms.max()] = 0.0
        out = np.sort(norms.argsort(kind="stable")[:moving])
        if gradient is None:
            worth = stream.bits(np, (seed, step), f"{name}.growth", np.arange(places)).astype(np.float64)
        else:
            worth = blocked(np.abs(gradient.astype(np.float64)), self.block).sum((2, 3)).reshape(-1)
        worth[pattern] = -np.inf  # neither where a block stands, nor where one stood just now
        new, moved = pattern.copy(), np.zeros(len(pattern), bool)
        if self.pattern == "balanced":
            rows = pattern[out] // grid[1]
            for row in np.unique(rows):
                mine, within = out[rows == row], worth.reshape(grid)[row]
                mine = mine[: np.isfinite(within).sum()]  # a row may have fewer empty places
                new[mine] = row * grid[1] + _largest(within, len(mine))
                moved[mine] = True
        else:
            new[out], moved[out] = _largest(worth, moving), True
        return new, moved


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest values; the first of equal ones."""
    return (-values).argsort(kind="stable")[:count]


def blocked(matrix: np.ndarray, block: int) -> np.ndarray:
    """A matrix (O, I) as its blocks (O / b, I / b, b, b)."""
    rows, columns = (size // block for size in matrix.shape)
    return matrix.reshape(rows, block, columns, block).swapaxes(1, 2)


def whole(weight: np.ndarray, pattern: np.ndarray, shape: Shape) -> np.ndarray:
    """The matrix (O, I) that blocks (n, b, b) at `pattern` make."""
    block = weight.shape[1]
    rows, columns = (size // block for size in shape)
    matrix = np.zeros((rows * columns, block, block), weight.dtype)
    matrix[pattern] = weight
    return matrix.reshape(rows, columns, block, block).swapaxes(1, 2).reshape(shape)
