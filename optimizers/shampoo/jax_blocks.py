"""Shampoo's blocks in jax: cut from parameters, multiplied side by side, joined again."""

import jax.numpy as jnp
from jax import Array

from suite.optimizers.shampoo.plan import Grid


def unfold_side(stack: Array, side: int) -> Array:
    """Blocks as matrices (blocks, length of one side, product of the others)."""
    if side == stack.ndim - 2:
        return stack.reshape(len(stack), -1, stack.shape[-1]).mT
    moved = jnp.moveaxis(stack, side + 1, 1)
    return moved.reshape(*moved.shape[:2], -1)


def multiply_side(stack: Array, root: Array, side: int) -> Array:
    """Blocks with one side multiplied by a symmetric matrix each."""
    if side == stack.ndim - 2:
        return (stack.reshape(len(stack), -1, stack.shape[-1]) @ root).reshape(stack.shape)
    moved = jnp.moveaxis(stack, side + 1, 1)
    return jnp.moveaxis((root @ moved.reshape(*moved.shape[:2], -1)).reshape(moved.shape), 1, side + 1)


def cut_blocks(value: Array, grid: Grid) -> Array:
    """A parameter's blocks, row by row: (blocks, lengths…)."""
    order, whole = len(grid.sides), value.reshape(grid.sides)
    whole = jnp.pad(whole, [(0, end - side) for side, end in zip(grid.sides, grid.padded, strict=True)])
    apart = whole.reshape([side for pair in zip(grid.counts, grid.lengths, strict=True) for side in pair])
    return apart.transpose(*range(0, 2 * order, 2), *range(1, 2 * order, 2)).reshape(-1, *grid.lengths)


def join_blocks(blocks: Array, grid: Grid) -> Array:
    """Return the tensor that `cut_blocks` made these blocks of."""
    order, apart = len(grid.sides), blocks.reshape(*grid.counts, *grid.lengths)
    whole = apart.transpose([axis for side in range(order) for axis in (side, order + side)]).reshape(grid.padded)
    return whole[tuple(map(slice, grid.sides))]
