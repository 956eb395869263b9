"""BFGS updates of stacks of inverses from pairs (s, y), in jax."""

import jax.numpy as jnp
from jax import Array

from suite.optimizers._linalg.jax import are_finite
from suite.optimizers.kbfgs.plan import CURVATURE, POWELL


def multiply_vectors(matrix: Array, vector: Array) -> Array:
    """Matrix-vector products of a stack: (count, m, n) and (count, n) to (count, m).

    They are sums, because XLA compiles every product with a vector on a CPU by itself, for three times as long.
    """
    return (matrix * vector[:, None, :]).sum(-1)


def double_damping(h: Array, s: Array, y: Array, ridge: Array) -> tuple[Array, Array]:
    """Pairs moved towards Hy and s so far that sᵀy ≥ μ₁ yᵀHy and sᵀy ≥ √λ sᵀs (Goldfarb et al. 2020, algorithm 2).

    Args:
        h: inverses (count, n, n).
        s: (count, n).
        y: (count, n).
        ridge: √λ.
    """
    hy = multiply_vectors(h, y)
    sy, yhy = _dot(s, y), _dot(y, hy)
    theta = jnp.where(sy < POWELL * yhy, (1.0 - POWELL) * yhy / (yhy - sy), 1.0)
    s = theta * s + (1.0 - theta) * hy
    sy, ss = _dot(s, y), _dot(s, s)
    theta = jnp.where(sy < ridge * ss, (1.0 - ridge) * ss / (ss - sy), 1.0)
    return s, theta * y + (1.0 - theta) * s


def apply_bfgs(h: Array, s: Array, y: Array, slope: Array) -> tuple[Array, Array]:
    """BFGS of inverses (count, n, n), and which pairs were used (count, 1, 1).

    Args:
        h: inverses (count, n, n).
        s: (count, n).
        y: (count, n).
        slope: ĝ (count, n), whose norm is in the least curvature of a pair that is used.
    """
    curvature = _dot(s, y)
    usable = curvature > CURVATURE * _dot(s, s) * jnp.linalg.norm(slope, axis=1, keepdims=True)
    rho = 1.0 / jnp.where(usable, curvature, 1.0)
    hy = multiply_vectors(h, y)
    scaled = (rho**2 * _dot(y, hy) + rho) * s - rho * hy
    new = h + s[:, :, None] * scaled[:, None] - (rho * hy)[:, :, None] * s[:, None]
    used = usable[:, :, None] & are_finite(new)
    return jnp.where(used, new, h), used


def _dot(one: Array, other: Array) -> Array:
    """Inner products of a stack, (count, 1)."""
    return (one * other).sum(1, keepdims=True)
