"""Each factor's own interval between statistics, in jax (SP-NGD, algorithms 1 and 2); see reference.py.

In compiled code, masks say which factors are due. A step in which any factor is due therefore takes and sends the
statistics of all factors. A step in which none is due takes none, and inverses that are not due are not computed.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

State = dict[str, Any]


def add_intervals(state: State) -> State:
    """Return the state with what the intervals are computed from.

    These are `before`, the factor before the last, beside each factor; `wait` (F,), steps until each factor is due; and
    `interval` (2, F), its last interval and the one before.
    """
    wait = jnp.zeros(len(state["mass"]), jnp.int32)
    owned = state["owned"] | {"before": {key: jnp.zeros_like(value) for key, value in state["owned"]["factor"].items()}}
    before = {name: jnp.zeros_like(value) for name, value in state["replicated"].items()}
    return state | {"owned": owned, "before": before, "wait": wait, "interval": jnp.ones((2, len(wait)), jnp.int32)}


def compare_factors(now: Array, last: Array, before: Array, alpha: Array) -> Array:
    """Return whether factors (m, …) differ by less than `alpha` from the last ones, and from the ones before (m, 2)."""

    def norm(value: Array) -> Array:
        return jnp.sqrt(jnp.square(value).sum(range(1, value.ndim)))

    return jnp.stack([norm(now - past) < alpha * norm(past) for past in (last, before)], 1)


def update_intervals(state: State, due: Array, similar: Array) -> State:
    """Return the state with new waiting times of the factors that were due.

    Args:
        state: of the optimizer.
        due: (F,) booleans in the order of `plan.factors`.
        similar: (F, 2) booleans, what `compare_factors` returned.
    """
    last, older = state["interval"]
    longer = jnp.where(similar[:, 1], last + older, last)
    chosen = jnp.where(similar[:, 0], longer, jnp.maximum(last // 2, 1))
    interval = jnp.where(due, jnp.stack([chosen, last]), state["interval"])
    return state | {"interval": interval, "wait": jnp.where(due, chosen, state["wait"])}
