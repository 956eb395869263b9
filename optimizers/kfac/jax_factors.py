"""What is done with factors in jax: damping and inversion."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from suite.optimizers.kfac.plan import SMALLEST, KFACPlan


def usable(inverse: Array) -> Array:
    """Whether the inverses (m, n, n) are some: their diagonals are positive, and bound all other entries."""
    diagonal = jnp.diagonal(inverse, axis1=-2, axis2=-1)
    return ((diagonal > 0.0) & (diagonal < jnp.inf)).all(-1)


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
    """(A + ridge · I)⁻¹ of one matrix (n, n) by Cholesky; see the torch twin. A loop, so that it is compiled once."""
    identity = jnp.eye(len(factor), dtype=factor.dtype)

    def again(tried: tuple[Array, Array]) -> tuple[Array, Array]:
        times, _ = tried
        damped = factor + times * ridge * identity
        return 10.0 * times, lax.linalg.cholesky(damped, symmetrize_input=False)  # it reads the lower half only

    def failed(tried: tuple[Array, Array]) -> Array:
        times, root = tried
        return jnp.isnan(root[0, 0]) & (times < 100.0)

    _, root = lax.while_loop(failed, again, (jnp.ones_like(ridge), jnp.full_like(factor, jnp.nan)))
    solve = functools.partial(lax.linalg.triangular_solve, root, left_side=True, lower=True)
    return solve(solve(identity), transpose_a=True)
