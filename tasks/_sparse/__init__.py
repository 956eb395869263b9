"""Block-sparse matrices: only non-zero blocks are stored; their places are a pattern, which may change in training.

This follows Dietrich et al.: Towards Structured Dynamic Sparse Pre-Training of BERT (arXiv:2108.06277), algorithm 1.
The run is divided into intervals. After each interval, the share p(t) of every matrix's blocks with the smallest L1
norm is removed, and as many empty places are filled, at random or where the gradient is largest (Evci et al.: Rigging
the Lottery, ICML 2020, arXiv:1911.11134). New blocks and their optimizer state are zero. As in the code of Dietrich et
al., a place that is emptied is not filled again in the same move.

A block keeps its index in storage; `pattern` contains its place in the matrix. Therefore no array is sorted, and all
shapes remain the same. This module is NumPy and draws from `suite.stream`, so every rank and both backends compute the
same pattern. The products are in torch.py and jax.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from suite import stream
from suite.contract import UserError

NOTHING = 1e-12  # of the largest norm of a block
WORTHWHILE = 8  # smallest block for which block products are faster than one dense product on a CPU (tests/bench)

Shape = tuple[int, int]


@dataclass(frozen=True)
class Sparsity:
    """Sparsity of matrices, and how it changes.

    Attributes:
        kind: `static`, or `dynamic`: blocks move.
        share: share of a matrix's blocks that are zero, s.
        block: rows and columns of a block, B.
        pattern: `random`, or `balanced`: the same number of blocks in each row of blocks, which is not in the paper.
        growth: how new places are chosen, `random` or `gradient`.
        ratio: share of the blocks that move at first, p(0); it falls to 0 along half a cosine.
        intervals: number of intervals of the run, n; blocks move between them, n - 1 times.
        steps: of the whole run, T.
        execution: `blocks`; `dense`, which fills in the zeros and multiplies as usual; or `auto`.
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
        if not 0.0 < self.share < 1.0:
            raise UserError(
                f"task.sparse.share={self.share}: must lie between 0 and 1, both excluded; for no zeros, "
                "set task.sparsity=dense"
            )

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern} blocks of {self.block} × {self.block}, {100 * self.share:g} % zero"

    @property
    def rate(self) -> float:
        """η(s) / η(0) = exp(1.969 s² + 0.2905 s), Dietrich et al., fitted to sweeps of static sparsity; 6.4 at 0.9."""
        return math.exp(1.969 * self.share**2 + 0.2905 * self.share) if self.scale_rate else 1.0

    def grid(self, name: str, shape: Shape) -> Shape:
        """Return the numbers of rows and columns of blocks.

        Raises:
            UserError: if the block size does not divide the shape.
        """
        if any(size % self.block for size in shape):
            raise UserError(
                f"task.sparse.block={self.block}: does not divide the shape of {name}, {shape[0]} × {shape[1]}"
            )
        return shape[0] // self.block, shape[1] // self.block

    def count(self, name: str, shape: Shape) -> int:
        """Return the number of stored blocks, at least one (if balanced, at least one per row)."""
        rows, columns = self.grid(name, shape)
        if self.pattern == "balanced":
            return rows * max(1, round((1.0 - self.share) * columns))
        return max(1, round((1.0 - self.share) * rows * columns))

    def start(self, seed: int, name: str, shape: Shape) -> np.ndarray:
        """Return the first places of the blocks, (n,) int32, ascending."""
        grid, count = self.grid(name, shape), self.count(name, shape)
        draws = stream.bits(np, (seed, 0), f"{name}.pattern", np.arange(math.prod(grid)))
        if self.pattern == "balanced":
            columns = np.sort(draws.reshape(grid).argsort(1, kind="stable")[:, : count // grid[0]], 1)
            return (columns + np.arange(grid[0])[:, None] * grid[1]).reshape(-1).astype(np.int32)
        return np.sort(draws.argsort(kind="stable")[:count]).astype(np.int32)

    def moves(self, step: int) -> bool:
        """Return whether blocks move after update `step` (from 0): an interval ends there, and more updates follow."""
        done = step + 1
        ends = done * self.intervals // self.steps > step * self.intervals // self.steps
        return self.kind == "dynamic" and ends and done < self.steps

    def moving(self, step: int, count: int, free: int) -> int:
        """Count the blocks that move after update `step`: p(t) times `count`, at most the `free` empty places."""
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
        """Choose the next places (n,) of a matrix's blocks (n, b, b), and which move (n,); see `suite.contract`."""
        grid = self.grid(name, shape)
        places = math.prod(grid)
        norms = np.abs(weight.astype(np.float64)).sum((1, 2))
        moving = self.moving(step, len(pattern), places - len(pattern))
        # Norms of rounding errors count as 0, and blocks with equal norms are removed by their index in storage.
        # Otherwise the last bit of a gradient would decide, which depends on the number of devices.
        norms[norms < NOTHING * norms.max()] = 0.0
        removed = np.sort(norms.argsort(kind="stable")[:moving])
        if gradient is None:
            worth = stream.bits(np, (seed, step), f"{name}.growth", np.arange(places)).astype(np.float64)
        else:
            worth = cut_blocks(np.abs(gradient.astype(np.float64)), self.block).sum((2, 3)).reshape(-1)
        worth[pattern] = -np.inf  # neither the present places of blocks, nor those being emptied
        new, moved = pattern.copy(), np.zeros(len(pattern), bool)
        if self.pattern == "balanced":
            rows = pattern[removed] // grid[1]
            for row in np.unique(rows):
                leaving, row_worth = removed[rows == row], worth.reshape(grid)[row]
                leaving = leaving[: np.isfinite(row_worth).sum()]  # a row may have fewer empty places
                new[leaving] = row * grid[1] + _largest(row_worth, len(leaving))
                moved[leaving] = True
        else:
            new[removed], moved[removed] = _largest(worth, moving), True
        return new, moved


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values; among equal values, the first."""
    return (-values).argsort(kind="stable")[:count]


def cut_blocks(matrix: np.ndarray, block: int) -> np.ndarray:
    """Split a matrix (O, I) into its blocks (O / b, I / b, b, b)."""
    rows, columns = (size // block for size in matrix.shape)
    return matrix.reshape(rows, block, columns, block).swapaxes(1, 2)
