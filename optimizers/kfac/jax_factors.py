"""Damping and inversion of K-FAC's factors, in jax."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from suite.optimizers.kfac.plan import SMALLEST, KFACPlan


def is_usable(inverse: Array) -> Array:
    """Which of the inverses (m, n, n) are finite and positive (m,); the diagonal bounds all other entries."""
    diagonal = jnp.diagonal(inverse, axis1=-2, axis2=-1)
    return ((diagonal > 0.0) & (diagonal < jnp.inf)).all(-1)


def mean_eigenvalues(plan: KFACPlan, state: dict[str, Any]) -> Array:
    """Return the mean eigenvalue of each of `plan.factors` (F,); 0 before its first statistics."""
    kind = state["trace"].dtype
    sizes = jnp.array([plan.sizes.get(name, 1) for name in plan.factors], kind)
    return state["trace"] / jnp.maximum(state["mass"], jnp.finfo(kind).tiny) / sizes


def find_damping(state: dict[str, Any]) -> Array:
    """Return λ: that of the settings, or as it has adapted."""
    return state.get("damping", state["hyper"]["damping"])


def compute_ridges(plan: KFACPlan, state: dict[str, Any]) -> Array:
    """Compute each diagonal's ridge (F,): π√λ and √λ/π, or √λ and √λ; λ for a factor without partner."""
    means, damping = mean_eigenvalues(plan, state), find_damping(state)
    mean, partner = jnp.maximum(means[: plan.paired], SMALLEST), jnp.array(plan.partner, int)
    ratio = mean / mean[partner] if plan.settings.damping_split == "pi" else jnp.ones_like(mean)
    return jnp.full_like(means, damping).at[: plan.paired].set(jnp.sqrt(damping * ratio))


def damped_inverse(factor: Array, ridge: Array) -> Array:
    """(A + ridge · I)⁻¹ of one matrix (n, n) by Cholesky, tried once more with ten times the ridge.

    The trials are a loop, so that the factorisation is compiled once. The result is not finite where both fail.
    """
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
