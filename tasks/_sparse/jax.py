"""Products with block-sparse matrices in jax."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.tasks._nn.jax import Tap, Tree, add_bias
from suite.tasks._sparse import WORTHWHILE, Shape


def linear(params: Tree, buffers: Tree, name: str, x: Array, tap: Tap, *, shape: Shape, execution: str) -> Array:
    """Return x Wᵀ + b of (…, inputs), in the place of `_nn.jax.linear`; the twin of torch's `BlockLinear`."""
    weight, pattern = params[f"{name}.weight"], buffers[f"{name}.pattern"]
    x = x.astype(weight.dtype)
    auto = "blocks" if jax.default_backend() == "cpu" and weight.shape[1] >= WORTHWHILE else "dense"
    if (auto if execution == "auto" else execution) == "dense":
        y = x @ assemble_matrix(weight, pattern, shape).T
    else:
        wide = jnp.promote_types(x.dtype, jnp.float32)  # sums in at least float32
        flat = x.reshape(-1, x.shape[-1]).astype(wide)
        y = jnp.asarray(multiply_blocks(flat, weight.astype(wide), pattern, shape[0]), x.dtype).reshape(
            *x.shape[:-1], -1
        )
    return tap(name, x, add_bias(y, params[f"{name}.bias"]))


def assemble_matrix(weight: Array, pattern: Array, shape: Shape) -> Array:
    """Assemble the dense matrix (O, I) from blocks (n, b, b) at the places `pattern` (n,)."""
    block = weight.shape[1]
    rows, columns = (size // block for size in shape)
    empty = jnp.zeros((rows * columns, block, block), weight.dtype)
    matrix = empty.at[pattern].set(weight, unique_indices=True, mode="promise_in_bounds")
    return matrix.reshape(rows, columns, block, block).swapaxes(1, 2).reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def multiply_blocks(x: Array, weight: Array, pattern: Array, outputs: int) -> Array:
    """X Wᵀ of (N, I), where W (O, I) has the blocks (n, b, b) at `pattern` (n,); costs n block products."""
    return _forward(x, weight, pattern, outputs)[0]


def _forward(x: Array, weight: Array, pattern: Array, outputs: int) -> tuple[Array, Any]:
    read = _columns(x, weight.shape[1])

    def add(written: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
        block, place = at
        return written.at[place // len(read)].add(block @ read[place % len(read)]), None

    empty = jnp.zeros((outputs // weight.shape[1], *read.shape[1:]), x.dtype)
    return _samples(lax.scan(add, empty, (weight, pattern))[0]), (read, weight, pattern)


def _backward(outputs: int, kept: Any, slope: Array) -> tuple[Array, Array, None]:
    read, weight, pattern = kept
    given = _columns(slope, weight.shape[1])

    def add(written: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        block, place = at
        row, column = place // len(read), place % len(read)
        return written.at[column].add(block.T @ given[row]), given[row] @ read[column].T

    by_input, by_weight = lax.scan(add, jnp.zeros_like(read), (weight, pattern))
    return _samples(by_input), by_weight, None


multiply_blocks.defvjp(_forward, _backward)


def _columns(x: Array, block: int) -> Array:
    """(N, width) as (width / b, b, N): the rows that a block reads and writes are then contiguous."""
    return x.T.reshape(-1, block, len(x))


def _samples(columns: Array) -> Array:
    """(width / b, b, N) as (N, width)."""
    return columns.reshape(-1, columns.shape[2]).T
