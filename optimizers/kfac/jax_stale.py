"""Each factor's own interval between statistics, in jax (SP-NGD, algorithms 1 and 2); see reference.py.

What is due is known in compiled code by masks. So a step in which any factor is due takes and sends the statistics of
all; steps in which none is due, and inverses that are not due, are left out.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

State = dict[str, Any]


def begin(state: State) -> State:
    """What is added to the state; see the torch twin."""
    wait = jnp.zeros(len(state["mass"]), jnp.int32)
    owned = state["owned"] | {"before": {key: jnp.zeros_like(value) for key, value in state["owned"]["factor"].items()}}
    before = {name: jnp.zeros_like(value) for name, value in state["replicated"].items()}
    return state | {"owned": owned, "before": before, "wait": wait, "interval": jnp.ones((2, len(wait)), jnp.int32)}


def alike(now: Array, last: Array, before: Array, alpha: Array) -> Array:
    """Whether factors (m, …) are similar to the last ones, and to the ones before (m, 2)."""
    norm = lambda value: jnp.sqrt(jnp.square(value).sum(range(1, value.ndim)))  # noqa: E731
    return jnp.stack([norm(now - past) < alpha * norm(past) for past in (last, before)], 1)


def settle(state: State, due: Array, similar: Array) -> State:
    """The state with waiting times of the factors that were due; both arguments in the order of `plan.factors`."""
    last, older = state["interval"]
    longer = jnp.where(similar[:, 1], last + older, last)
    chosen = jnp.where(similar[:, 0], longer, jnp.maximum(last // 2, 1))
    interval = jnp.where(due, jnp.stack([chosen, last]), state["interval"])
    return state | {"interval": interval, "wait": jnp.where(due, chosen, state["wait"])}
