"""Triangles of symmetric matrices in torch."""

import functools

import torch
from torch import Tensor


@functools.lru_cache(maxsize=256)
def _places(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each packed number stands in the matrix, and each of the matrix in the packed."""
    row, column = torch.tril_indices(n, n, device=device)
    number = torch.arange(len(row), device=device)
    back = torch.empty(n, n, dtype=torch.int64, device=device)
    back[row, column] = back[column, row] = number
    return row * n + column, back.flatten()


def pack(stack: Tensor) -> Tensor:
    """Symmetric (m, n, n) as their lower triangles (m, n (n + 1) / 2)."""
    return stack.flatten(1)[:, _places(stack.shape[1], stack.device)[0]]


def unpack(rows: Tensor) -> Tensor:
    """The matrices (m, n, n) again."""
    n = int((2 * rows.shape[1]) ** 0.5)
    return rows[:, _places(n, rows.device)[1]].unflatten(1, (n, n))
