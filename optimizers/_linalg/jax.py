"""Inverse roots, products of narrow matrices, and factorisations of several matrices, in jax."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.optimizers._base.jax import widen_type
from suite.optimizers._linalg import CAP, FAILURE, GROWTH, SOLVER

Result = TypeVar("Result")


def inverse_root(stack: Array, order: int, *, epsilon: Array | float, method: str = "auto") -> Array:
    """Compute the inverse root of each damped matrix.

    Args:
        stack: symmetric positive semidefinite matrices (count, n, n).
        order: p of A^(-1/p).
        epsilon: ridge, relative to the largest eigenvalue; may be traced.
        method: auto | eigh | eigh32 | newton.

    Returns:
        (count, n, n), in the type of the stack; not finite for a matrix without a usable root.
    """
    usable, safe, mean = replace_unusable_matrices(stack)
    epsilon = jnp.asarray(epsilon, stack.dtype)
    eigh, newton = partial(_eigh, order=order), partial(_newton, order=order)
    narrow = partial(_eigh, order=order, wide=False)
    if method == "auto":
        root = lax.platform_dependent(safe, mean, epsilon, cpu=eigh, default=newton)
    else:
        root = {"eigh": eigh, "eigh32": narrow, "newton": newton}[method](safe, mean, epsilon)
    return jnp.where(usable, root, jnp.nan)


def multiply_matrices(left: Array, right: Array) -> Array:
    """Return left right, of matrices or of stacks of them; in float32 if they are in bfloat16 or float16.

    Products of two such numbers are exact in float32.
    """
    return jnp.matmul(left, right, preferred_element_type=widen_type(left.dtype))


def map_matrices(function: Callable[[Any], Result], items: Any) -> Result:
    """Apply a function that factorises a matrix to each item: on a CPU to one after another, elsewhere to all at once.

    With several CPU devices in a process, jaxlib 0.10.2 hangs in a batched call, or in a callback to NumPy, about once
    in a hundred times: it waits on a thread of the pool for work that needs another one.

    Args:
        function: of one item.
        items: an array, or a tree of them; the first axis numbers the items.
    """
    return lax.platform_dependent(items, cpu=partial(lax.map, function), default=jax.vmap(function))


def replace_unusable_matrices(stack: Array) -> tuple[Array, Array, Array]:
    """Replace the matrices that have no root.

    Args:
        stack: symmetric matrices (count, n, n).

    Returns:
        Whether each matrix has a root (count, 1, 1), the stack with identities in place of those that have none, and
        the mean eigenvalues (count, 1, 1), 1 for those.
    """
    identity, limits = jnp.eye(stack.shape[-1], dtype=stack.dtype), jnp.finfo(stack.dtype)
    mean = (stack * identity).sum((1, 2), keepdims=True) / len(identity)  # NaN if an entry is not finite: 0 · ∞
    usable = (mean >= limits.tiny) & (mean <= limits.max)
    return usable, jnp.where(usable, stack, identity), jnp.where(usable, mean, 1.0)


def are_finite(stack: Array) -> Array:
    """Return whether all entries of each matrix are finite (count, 1, 1).

    The test is a sum, which XLA compiles fastest, of 0 · x, which is 0 if x is finite and NaN otherwise. A sum of zeros
    does not overflow.
    """
    return (0.0 * stack).sum((1, 2), keepdims=True) == 0.0


def _eigh(stack: Array, mean: Array, epsilon: Array, *, order: int, wide: bool = True) -> Array:
    kind = jnp.float64 if wide else jnp.float32
    scale = jnp.ones_like(mean) if wide else mean  # avoids overflow and underflow in float32
    with jax.enable_x64(True):
        vectors, values = map_matrices(lax.linalg.eigh, (stack / scale).astype(kind))
        values = jnp.maximum(values, 0.0)
        shares = values / values[:, -1:]
        norm = jnp.sqrt((shares * shares).sum(1, keepdims=True))
        regular = shares[:, :1] + epsilon.astype(kind) > _noise(norm, stack)
        values = values + epsilon.astype(kind) * values[:, -1:]
        values = jnp.where(regular, values, jnp.nan)
        root = jnp.matmul(vectors * values[:, None] ** (-1.0 / order), vectors.mT, precision=lax.Precision.HIGHEST)
        return root.astype(stack.dtype) * scale ** (-1.0 / order)


def _noise(norm: Array, stack: Array) -> Array:
    """Return the error of the eigenvalues by rounding, relative to the largest eigenvalue, as is `norm`.

    `stack` has the type of the matrices, `norm` that of the eigenvalues.
    """
    return jnp.maximum(jnp.finfo(stack.dtype).eps / stack.shape[-1] * norm, SOLVER * jnp.finfo(norm.dtype).eps)


def _newton(stack: Array, mean: Array, epsilon: Array, *, order: int) -> Array:
    """Return the coupled iteration on A / mean; see `_newton` in torch.py."""
    with jax.default_matmul_precision("highest"):
        top, identity = bound_largest_eigenvalue(stack / mean), jnp.eye(stack.shape[-1], dtype=stack.dtype)
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
        small = epsilon <= SOLVER * jnp.finfo(stack.dtype).eps  # M can converge by its rounding errors alone
        regular = lax.cond(small, _regular, lambda *_: jnp.ones_like(top, bool), stack, mean * top, x, epsilon)
        return jnp.where((error <= FAILURE) & regular, x * (top * mean) ** (-1.0 / order), jnp.nan)


def _regular(stack: Array, top: Array, root: Array, epsilon: Array) -> Array:
    """Return whether each matrix with largest eigenvalue about `top` is regular (count, 1, 1); see torch.py."""
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


def bound_largest_eigenvalue(stack: Array) -> Array:
    """An upper bound of the largest eigenvalue (count, 1, 1); see torch.py."""
    norm = jnp.linalg.norm(stack, axis=(-2, -1), keepdims=True)
    power = jnp.linalg.matrix_power(stack / norm, 16)
    return norm * jnp.linalg.norm(power, axis=(-2, -1), keepdims=True) ** (1.0 / 16.0)
