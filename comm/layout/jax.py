"""Triangles of symmetric matrices in jax."""

import numpy as np
from jax import Array


def pack_triangles(stack: Array) -> Array:
    """Symmetric matrices (m, n, n) to their lower triangles (m, n (n + 1) / 2)."""
    row, column = np.tril_indices(stack.shape[1])
    return stack[:, row, column]


def unpack_triangles(rows: Array) -> Array:
    """Lower triangles (m, n (n + 1) / 2) to the symmetric matrices (m, n, n)."""
    n = int((2 * rows.shape[1]) ** 0.5)
    row, column = np.tril_indices(n)
    back = np.empty((n, n), np.int32)
    back[row, column] = back[column, row] = np.arange(len(row))
    return rows[:, back]
