"""Exponential averages of K-FAC's factors, in jax."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from suite.contract import Reduce
from suite.optimizers.kfac import jax_stale
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Array]
State = dict[str, Any]


class Refresh(NamedTuple):
    """Changes of each factor in one step; arrays (F,) are in the order of `plan.factors`.

    Attributes:
        due: (F,) booleans, the factors to refresh.
        finite: (F,) booleans, whether the new statistics are.
        decay: weight of the old average.
        old_mass: (F,), what the weights in the old average sum to.
        mass: (F,), what those in the new average sum to.
        alpha: relative change below which a factor counts as unchanged.
    """

    due: Array
    finite: Array
    decay: Array
    old_mass: Array
    mass: Array
    alpha: Array

    @property
    def taken(self) -> Array:
        """(F,) booleans, the factors that take their statistics in."""
        return self.due & self.finite


class Mixed(NamedTuple):
    """Some factors (m, …) after a refresh; `before` and `similar` are None without stale statistics.

    Attributes:
        factor: the sums, not divided by their mass.
        before: the averages (m, …) before this refresh, which the next refresh needs.
        similar: (m, 2) booleans, whether each is similar to the last one and to the one before.
    """

    factor: Array
    before: Array | None
    similar: Array | None


def mix_statistics(
    plan: KFACPlan, statistics: Tree, state: State, due: Array, decay: Array, *, reduce: Reduce[Array]
) -> tuple[State, Array]:
    """Average statistics over ranks and take those that are due into the factors.

    Args:
        plan: where the factors are.
        statistics: mean over this rank's samples of every factor, by name.
        state: of the optimizer.
        due: (F,) booleans in the order of `plan.factors`.
        decay: weight of the old averages.
        reduce: communication between ranks.

    Returns:
        The new state; and (F, 2) booleans, whether each factor is similar to the last one and to the one before. They
        are false without stale statistics.
    """
    values = [statistics[name] for name in plan.factors]
    traces = [jnp.trace(v) if n in plan.buckets.place else v.sum() for n, v in zip(plan.factors, values, strict=True)]
    means = reduce.exact({name: statistics[name] for name in plan.replicated} | {"trace": jnp.stack(traces)})
    trace = means.pop("trace")
    finite = jnp.isfinite(trace)  # |a_ij|² ≤ a_ii a_jj: where the trace is finite, all is
    old_mass = state["mass"]
    mass = jnp.where(due & finite, decay * old_mass + (1.0 - decay), old_mass)
    refresh = Refresh(due, finite, decay, old_mass, mass, state["hyper"]["stale_alpha"])
    similar = jnp.zeros((len(plan.factors), 2), bool)
    replicated, before, similar = _replicated(plan, means, state, refresh, similar)
    owned, similar = _owned(plan, statistics, state, refresh, similar, reduce)
    return state | {
        "mass": mass,
        "trace": jnp.where(refresh.taken, decay * state["trace"] + (1.0 - decay) * trace, state["trace"]),
        "refreshed": state["refreshed"] + refresh.taken.sum(dtype=jnp.int32),
        "kept": state["kept"] + (due & ~finite).sum(dtype=jnp.int32),
        "replicated": replicated,
        "owned": owned,
    } | ({"before": before} if plan.settings.stale else {}), similar & finite[:, None]


def _replicated(
    plan: KFACPlan, means: Tree, state: State, refresh: Refresh, similar: Array
) -> tuple[Tree, Tree, Array]:
    """Return the factors that all ranks hold, those before them, and `similar` with their rows filled in."""
    factors, before = {}, {}
    for name, value in means.items():
        past = state["before"][name][None] if plan.settings.stale else None
        number = plan.index[name]
        mixed = _mixed(refresh, jnp.array([number]), state["replicated"][name][None], value[None], past)
        factors[name] = mixed.factor[0]
        if mixed.before is not None and mixed.similar is not None:
            before[name], similar = mixed.before[0], similar.at[number].set(mixed.similar[0])
    return factors, before, similar


def _owned(
    plan: KFACPlan, statistics: Tree, state: State, refresh: Refresh, similar: Array, reduce: Reduce[Array]
) -> tuple[dict[str, Tree], Array]:
    """Return the factors that this rank owns, as state; and `similar` with the rows of all owners filled in."""
    past, factors, before = state["owned"].get("before", {}), {}, {}
    for key, members in plan.buckets.members.items():
        owners, stack = plan.buckets.owners(key), jnp.stack([statistics[side] for side in members])
        new = reduce.to_owners(f"factor/{key}", stack, owners, symmetric=True)
        numbers = reduce.mine(jnp.array(plan.rows(key)), owners)
        mixed = _mixed(refresh, numbers, state["owned"]["factor"][key], new, past.get(key))
        factors[key] = mixed.factor
        if mixed.before is not None and mixed.similar is not None:
            gathered = reduce.gather("stale", mixed.similar, owners, exact=True)
            before[key], similar = mixed.before, similar.at[jnp.array(plan.rows(key))].set(gathered)
    return {"factor": factors} | ({"before": before} if plan.settings.stale else {}), similar


def _mixed(refresh: Refresh, numbers: Array, factor: Array, new: Array, before: Array | None) -> Mixed:
    """Mix new statistics (m, …) into the factors with these numbers in `plan.factors`."""

    def beside(value: Array) -> Array:
        return value[numbers].reshape(-1, *[1] * (factor.ndim - 1))

    decay, tiny = refresh.decay, jnp.finfo(refresh.mass.dtype).tiny
    mixed = jnp.where(beside(refresh.taken), decay * factor + (1.0 - decay) * new, factor)
    if before is None:
        return Mixed(mixed, None, None)
    last = factor / beside(jnp.maximum(refresh.old_mass, tiny))
    now = mixed / beside(jnp.maximum(refresh.mass, tiny))
    similar = jax_stale.compare_factors(now, last, before, refresh.alpha)
    return Mixed(mixed, jnp.where(beside(refresh.due), last, before), similar)
