"""Inverse roots in jax."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.optimizers._linalg import CAP, FAILURE, GROWTH, SOLVER


def inverse_root(stack: Array, order: int, *, epsilon: Array | float, method: str = "auto") -> Array:
    """The inverse root of each damped matrix; not finite where there is none.

    Arguments as in `suite.optimizers._linalg.torch.inverse_root`; `epsilon` may be traced.
    """
    usable, safe, mean = decomposable(stack)
    epsilon = jnp.asarray(epsilon, stack.dtype)
    eigh, newton = partial(_eigh, order=order), partial(_newton, order=order)
    narrow = partial(_eigh, order=order, wide=False)
    if method == "auto":
        root = lax.platform_dependent(safe, mean, epsilon, cpu=eigh, default=newton)
    else:
        root = {"eigh": eigh, "eigh32": narrow, "newton": newton}[method](safe, mean, epsilon)
    return jnp.where(usable, root, jnp.nan)


def decomposable(stack: Array) -> tuple[Array, Array, Array]:
    """Which symmetric matrices (count, n, n) have a root; identities in place of the others; mean eigenvalues.

    The first and the last are (count, 1, 1).
    """
    identity, limits = jnp.eye(stack.shape[-1], dtype=stack.dtype), jnp.finfo(stack.dtype)
    mean = (stack * identity).sum((1, 2), keepdims=True) / len(identity)  # NaN where any entry is not finite: 0 · ∞
    usable = (mean >= limits.tiny) & (mean <= limits.max)
    return usable, jnp.where(usable, stack, identity), jnp.where(usable, mean, 1.0)


def finite(stack: Array) -> Array:
    """Whether all entries of each matrix are finite (count, 1, 1).

    By a sum, which XLA compiles soonest, and of zeros, which does not overflow: 0 · x is 0 where x is finite, else NaN.
    """
    return (0.0 * stack).sum((1, 2), keepdims=True) == 0.0


def _eigh(stack: Array, mean: Array, epsilon: Array, *, order: int, wide: bool = True) -> Array:
    # Neither a callback to NumPy nor a batched call: with several CPU devices in a process, jaxlib 0.10.2 hangs in both
    # once in some hundred times, because each waits on a thread of the pool for work that needs another one.
    kind = jnp.float64 if wide else jnp.float32
    scale = jnp.ones_like(mean) if wide else mean  # float32 has a range to keep to
    with jax.enable_x64(True):
        vectors, values = lax.map(lax.linalg.eigh, (stack / scale).astype(kind))
        values = jnp.maximum(values, 0.0)
        shares = values / values[:, -1:]
        norm = jnp.sqrt((shares * shares).sum(1, keepdims=True))
        regular = shares[:, :1] + epsilon.astype(kind) > _noise(norm, stack)
        values = values + epsilon.astype(kind) * values[:, -1:]
        values = jnp.where(regular, values, jnp.nan)
        root = jnp.matmul(vectors * values[:, None] ** (-1.0 / order), vectors.mT, precision=lax.Precision.HIGHEST)
        return root.astype(stack.dtype) * scale ** (-1.0 / order)


def _noise(norm: Array, stack: Array) -> Array:
    """The largest eigenvalue that rounding alone can have made, as a share of the largest of all, as `norm` is.

    `stack` is as it came in, `norm` of the type in which eigenvalues were taken.
    """
    return jnp.maximum(jnp.finfo(stack.dtype).eps / stack.shape[-1] * norm, SOLVER * jnp.finfo(norm.dtype).eps)


def _newton(stack: Array, mean: Array, epsilon: Array, *, order: int) -> Array:
    """The coupled iteration on A / mean; see the torch twin."""
    with jax.default_matmul_precision("highest"):
        top, identity = largest(stack / mean), jnp.eye(stack.shape[-1], dtype=stack.dtype)
        tolerance = 8.0 * jnp.finfo(stack.dtype).eps
        scale = (1.0 + order) / (2.0 * (1.0 + epsilon))
        x = jnp.broadcast_to(scale ** (1.0 / order) * identity, stack.shape)
        m = scale * (stack / mean / top + epsilon * identity)

        def going(loop: tuple[Array, ...]) -> Array:
            return (loop[0] < CAP) & loop[-1].any()

        def iterate(loop: tuple[Array, ...]) -> tuple[Array, ...]:
            iteration, x, m, error, active = loop
            t = ((order + 1.0) * identity - m) / order
            x_next, m_next = x @ t, jnp.linalg.matrix_power(t, order) @ m
            error_next = jnp.abs(m_next - identity).max((-2, -1), keepdims=True)
            active = active & (error_next < GROWTH * error)
            x, m = jnp.where(active, x_next, x), jnp.where(active, m_next, m)
            error = jnp.where(active, error_next, error)
            return iteration + 1, x, m, error, active & (error > tolerance)

        start = (jnp.zeros((), int), x, m, jnp.full_like(top, jnp.inf), jnp.ones_like(top, bool))
        _, x, _, error, _ = lax.while_loop(going, iterate, start)
        small = epsilon <= SOLVER * jnp.finfo(stack.dtype).eps  # M alone does not tell: its own rounding may converge
        regular = lax.cond(small, _regular, lambda *_: jnp.ones_like(top, bool), stack, mean * top, x, epsilon)
        return jnp.where((error <= FAILURE) & regular, x * (top * mean) ** (-1.0 / order), jnp.nan)


def _regular(stack: Array, top: Array, root: Array, epsilon: Array) -> Array:
    """Whether a matrix whose largest eigenvalue is about `top` is regular (count, 1, 1); see the torch twin."""
    power = root
    for _ in range(2):
        power = jnp.linalg.matrix_power(power / jnp.linalg.norm(power, axis=(-2, -1), keepdims=True), 4)
    power = power / jnp.linalg.norm(power, axis=(-2, -1), keepdims=True)
    longest = jnp.linalg.norm(power, axis=1).argmax(1)
    vector = jnp.take_along_axis(power, longest[:, None, None], 2)
    with jax.enable_x64(True):
        wide, vector = stack.astype(jnp.float64) / top.astype(jnp.float64), vector.astype(jnp.float64)
        norm = jnp.sqrt((wide * wide).sum((1, 2), keepdims=True))
        least = (vector * (wide * vector.mT).sum(2, keepdims=True)).sum(1, keepdims=True)
        least = least / (vector * vector).sum(1, keepdims=True)
        return least + epsilon.astype(jnp.float64) > _noise(norm, stack)


def largest(stack: Array) -> Array:
    """The largest eigenvalue, from above; see the torch twin."""
    norm = jnp.linalg.norm(stack, axis=(-2, -1), keepdims=True)
    power = jnp.linalg.matrix_power(stack / norm, 16)
    return norm * jnp.linalg.norm(power, axis=(-2, -1), keepdims=True) ** (1.0 / 16.0)
