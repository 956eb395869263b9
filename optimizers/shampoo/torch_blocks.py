"""Shampoo's blocks in torch: cut from parameters, multiplied side by side, joined again."""

import math

from torch import Tensor
from torch.nn import functional

from suite.optimizers.shampoo.plan import Grid


def find_touched_rows(stack: Tensor) -> Tensor | None:
    """Return the rows of tables (tables, rows, columns) that any of them has a gradient for; None unless these are few.

    Gᵀ G and G R^(-1/2) need no others. Only on a CPU: elsewhere the host would have to wait for the answer.
    """
    if stack.ndim != 3 or stack.device.type != "cpu":
        return None
    rows = (stack.abs().sum((0, 2)) != 0).nonzero()[:, 0]  # NaN is not zero
    return rows if 2 * len(rows) < stack.shape[1] else None


def unfold_side(stack: Tensor, side: int) -> Tensor:
    """Blocks as matrices (blocks, length of one side, product of the others)."""
    if side == stack.ndim - 2:
        return stack.flatten(1, -2).mT
    return stack.movedim(side + 1, 1).flatten(2)


def multiply_side(stack: Tensor, root: Tensor, side: int) -> Tensor:
    """Blocks with one side multiplied by a symmetric matrix each."""
    if side == stack.ndim - 2:
        return (stack.flatten(1, -2) @ root).view_as(stack)
    moved = stack.movedim(side + 1, 1)
    return (root @ moved.flatten(2)).view_as(moved).movedim(1, side + 1)


def view_blocks(whole: Tensor, grid: Grid) -> Tensor:
    """A padded tensor by blocks (counts…, lengths…): a view of it."""
    order = len(grid.sides)
    sides = [side for pair in zip(grid.counts, grid.lengths, strict=True) for side in pair]
    return whole.view(sides).permute(*range(0, 2 * order, 2), *range(1, 2 * order, 2))


def cut_blocks(value: Tensor, grid: Grid, into: Tensor) -> None:
    """Put a parameter's blocks, row by row, into (blocks, lengths…)."""
    whole = value.reshape(grid.sides)
    if grid.padded != grid.sides:
        ends = [end for side, padded in zip(grid.sides, grid.padded, strict=True) for end in (padded - side, 0)]
        whole = functional.pad(whole, ends[::-1])
    into.view(*grid.counts, *grid.lengths).copy_(view_blocks(whole, grid))


def join_blocks(blocks: Tensor, grid: Grid) -> Tensor:
    """Return the tensor that `cut_blocks` took these blocks of."""
    whole = blocks.new_empty(math.prod(grid.padded))
    view_blocks(whole, grid).copy_(blocks.reshape(*grid.counts, *grid.lengths))
    return whole.view(grid.padded)[tuple(map(slice, grid.sides))]
