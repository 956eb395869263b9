"""What is done with factors in jax: damping and inversion."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from suite.optimizers.kfac.plan import SMALLEST, KFACPlan


def usable(inverse: Array) -> Array:
    """Whether the inverses (m, n, n) are finite: their diagonals bound all others."""
    return jnp.isfinite(jnp.diagonal(inverse, axis1=-2, axis2=-1)).all(-1)


def mean_eigenvalues(plan: KFACPlan, state: dict[str, Any]) -> Array:
    """Of each of `plan.factors`; 0 before its first statistics."""
    kind = state["trace"].dtype
    sizes = jnp.array([plan.sizes.get(name, 1) for name in plan.factors], kind)
    return state["trace"] / jnp.maximum(state["mass"], jnp.finfo(kind).tiny) / sizes


def ridges(plan: KFACPlan, state: dict[str, Any], split: str) -> Array:
    """What is added to the diagonal of each factor: π√λ and √λ/π, or √λ and √λ; λ where there is no partner."""
    means, damping = mean_eigenvalues(plan, state), state["hyper"]["damping"]
    mean, partner = jnp.maximum(means[: plan.paired], SMALLEST), jnp.array(plan.partner, int)
    ratio = mean / mean[partner] if split == "pi" else jnp.ones_like(mean)
    return jnp.full_like(means, damping).at[: plan.paired].set(jnp.sqrt(damping * ratio))


def damped_inverse(factor: Array, ridge: Array) -> Array:
    """(A + ridge · I)⁻¹ of one matrix (n, n) by Cholesky; see the torch twin."""
    identity = jnp.eye(len(factor), dtype=factor.dtype)
    sound = lambda root: jnp.isfinite(jnp.diagonal(root)).all()  # noqa: E731
    cholesky = functools.partial(lax.linalg.cholesky, symmetrize_input=False)  # it reads the lower half only
    root = cholesky(factor + ridge * identity)
    root = lax.cond(sound(root), lambda: root, lambda: cholesky(factor + 10.0 * ridge * identity))
    solve = functools.partial(lax.linalg.triangular_solve, root, left_side=True, lower=True)
    return jnp.where(sound(root), solve(solve(identity), transpose_a=True), jnp.nan)
