"""BFGS updates of stacks of inverses from pairs (s, y), in torch."""

import torch
from torch import Tensor

from suite.optimizers.kbfgs.plan import CURVATURE, POWELL


def multiply_vectors(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrix-vector products of a stack: (count, m, n) and (count, n) to (count, m)."""
    return (matrix @ vector[:, :, None])[:, :, 0]


def double_damping(h: Tensor, s: Tensor, y: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Pairs moved towards Hy and s so far that sᵀy ≥ μ₁ yᵀHy and sᵀy ≥ √λ sᵀs (Goldfarb et al. 2020, algorithm 2).

    Args:
        h: inverses (count, n, n).
        s: (count, n).
        y: (count, n).
        ridge: √λ.
    """
    hy = multiply_vectors(h, y)
    sy, yhy = _dot(s, y), _dot(y, hy)
    theta = torch.where(sy < POWELL * yhy, (1.0 - POWELL) * yhy / (yhy - sy), 1.0)
    s = theta * s + (1.0 - theta) * hy
    sy, ss = _dot(s, y), _dot(s, s)
    theta = torch.where(sy < ridge * ss, (1.0 - ridge) * ss / (ss - sy), 1.0)
    return s, theta * y + (1.0 - theta) * s


def apply_bfgs(h: Tensor, s: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """BFGS of inverses (count, n, n), in place; which pairs were used (count,).

    Args:
        h: inverses (count, n, n), changed.
        s: (count, n).
        y: (count, n).
        slope: ĝ (count, n), whose norm is in the least curvature of a pair that is used.
    """
    curvature = _dot(s, y)
    usable = curvature > CURVATURE * _dot(s, s) * slope.norm(dim=1, keepdim=True)
    rho = 1.0 / torch.where(usable, curvature, 1.0)
    hy = multiply_vectors(h, y)
    scaled = (rho**2 * _dot(y, hy) + rho) * s - rho * hy
    new = h + s[:, :, None] * scaled[:, None] - (rho * hy)[:, :, None] * s[:, None]
    usable = usable[:, 0] & new.isfinite().all(-1).all(-1)
    h.copy_(torch.where(usable[:, None, None], new, h))
    return usable


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of a stack, (count, 1)."""
    return (one * other).sum(1, keepdim=True)
