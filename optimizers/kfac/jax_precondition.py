"""Natural gradient: K-FAC's inverses applied to gradients, in jax."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from suite.optimizers.kfac.jax_factors import find_damping
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Array]


def precondition_gradients(plan: KFACPlan, state: dict[str, Any], grads: Tree, ridges: Array) -> Tree:
    """G⁻¹ ∇W A⁻¹ for every covered layer; other gradients stay as they are.

    Args:
        plan: where the factors are.
        state: of the optimizer.
        grads: by parameter.
        ridges: (F,), what is added to the diagonal of each factor.
    """
    direction, damping = dict(grads), find_damping(state)
    mass = jnp.maximum(state["mass"], jnp.finfo(ridges.dtype).tiny)

    def inverse(side: str) -> Array:
        key, row = plan.buckets.place[side]
        return state["inverse"][key][row]

    for name in plan.kronecker:
        weight, *bias = plan.layers[name].parameters
        last = jnp.moveaxis(grads[weight], 1, -1)  # the channel comes last in A
        matrix = last.reshape(len(last), -1)
        full = jnp.concatenate([matrix, *(grads[b][:, None] for b in bias)], 1)
        full = inverse(f"{name}/out") @ full @ inverse(f"{name}/in")
        direction[weight] = jnp.moveaxis(full[:, : matrix.shape[1]].reshape(last.shape), -1, 1)
        direction |= {b: full[:, -1] for b in bias}
    for name in plan.embedding:
        weight, side = plan.layers[name].parameters[0], f"{name}/in"
        diagonal = state["replicated"][side] / mass[plan.index[side]] + ridges[plan.index[side]]
        direction[weight] = grads[weight] / diagonal[:, None] @ inverse(f"{name}/out")
    for name in plan.whole:
        both = plan.layers[name].parameters
        full = inverse(name) @ jnp.concatenate([grads[parameter] for parameter in both])
        direction |= dict(zip(both, jnp.split(full, 2), strict=True))
    for name in plan.unit:
        weight, bias = plan.layers[name].parameters
        a, b, c = (state["replicated"][name] / mass[plan.index[name]]).T  # [[a, b], [b, c]] for each channel
        a, c = a + damping, c + damping
        determinant = a * c - b * b
        direction[weight] = (c * grads[weight] - b * grads[bias]) / determinant
        direction[bias] = (a * grads[bias] - b * grads[weight]) / determinant
    return direction


def clip_direction(plan: KFACPlan, grads: Tree, direction: Tree, *, lr: Array, bound: Array) -> Tree:
    """Return the covered parameters' d = F⁻¹ g, scaled so that the squared length lr² dᵀ F d is at most `bound`.

    A bound of 0 means no limit.
    """
    covered = [name for layer in plan.layers.values() for name in layer.parameters]
    length = jnp.stack([jnp.vdot(grads[name], direction[name]) for name in covered]).sum()
    length = jnp.maximum(length, jnp.finfo(length.dtype).tiny)
    factor = jnp.minimum(jnp.sqrt(bound / length) / jnp.maximum(lr, 1e-30), 1.0)
    factor = jnp.where(bound > 0, factor, 1.0)
    return {name: direction[name] * factor for name in covered}
