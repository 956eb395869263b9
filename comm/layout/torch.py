"""Triangles of symmetric matrices in torch."""

import functools

import torch
from torch import Tensor


@functools.lru_cache(maxsize=256)
def _places(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each packed number's index in the flat matrix, and each element's index in the packed array."""
    row, column = torch.tril_indices(n, n, device=device)
    number = torch.arange(len(row), device=device)
    back = torch.empty(n, n, dtype=torch.int64, device=device)
    back[row, column] = back[column, row] = number
    return row * n + column, back.flatten()


def pack_triangles(stack: Tensor) -> Tensor:
    """Symmetric matrices (m, n, n) to their lower triangles (m, n (n + 1) / 2)."""
    return stack.flatten(1)[:, _places(stack.shape[1], stack.device)[0]]


def unpack_triangles(rows: Tensor) -> Tensor:
    """Lower triangles (m, n (n + 1) / 2) to the symmetric matrices (m, n, n)."""
    n = int((2 * rows.shape[1]) ** 0.5)
    return rows[:, _places(n, rows.device)[1]].unflatten(1, (n, n))
