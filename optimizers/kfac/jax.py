"""K-FAC in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.contract import Layer
from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers.kfac import jax_stale
from suite.optimizers.kfac.jax_factors import damped_inverse, ridges, usable
from suite.optimizers.kfac.jax_precondition import clipped, precondition
from suite.optimizers.kfac.jax_statistics import factors
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Array]
State = dict[str, Any]


def kfac(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    world: int = 1,
    lr: float = 0.1,
    momentum: float = 0.9,
    momentum_on: str = "direction",
    damping: float = 0.1,
    damping_split: str = "pi",
    factor_decay: float = 0.95,
    factor_interval: int = 1,
    inverse_interval: int = 1,
    inverse_warmup: int = 0,
    stale: bool = False,
    stale_alpha: float = 0.1,
    warm_start: int = 0,
    weight_decay: float = 0.0,
    fisher: str = "empirical",
    batchnorm: str = "unit",
    rescale: bool = False,
    kl_clip: float = 0.0,
) -> Optimizer:
    """Natural gradient with Kronecker factors; arguments as in `suite.optimizers.kfac.torch.KFAC`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan`, `host`, `observe`,
    `absorb`, `prepare`, `program` and `facts`; call them as the torch class says.
    """
    plan = KFACPlan(
        layers,
        shapes,
        world=world,
        factor_interval=factor_interval,
        inverse_interval=inverse_interval,
        inverse_warmup=inverse_warmup,
        stale=stale,
        warm_start=warm_start,
        fisher=fisher,
        batchnorm=batchnorm,
        damping_split=damping_split,
        momentum_on=momentum_on,
    )
    buckets = plan.buckets

    def init(params: Tree) -> State:
        kind = next(iter(params.values())).dtype
        values = {"lr": lr, "momentum": momentum, "damping": damping, "factor_decay": factor_decay}
        values |= {"weight_decay": weight_decay, "stale_alpha": stale_alpha, "kl_clip": kl_clip}
        eye = {key: jnp.eye(int(key), dtype=kind) for key in buckets.members}
        factor = {key: jnp.zeros((n * world, int(key), int(key)), kind) for key, n in buckets.share.items()}
        state = {
            "hyper": hyper(**values),
            "owned": {"factor": factor},  # split by rank, a slice each
            "inverse": {key: jnp.tile(eye[key], (len(rows), 1, 1)) for key, rows in buckets.members.items()},
            "replicated": {name: jnp.zeros(shape, kind) for name, shape in plan.replicated.items()},
            "trace": jnp.zeros(len(plan.factors), kind),
            "mass": jnp.zeros(len(plan.factors), kind),
            "kept": jnp.zeros((), jnp.int32),
            "refreshed": jnp.zeros((), jnp.int32),
            "velocity": jax.tree.map(jnp.zeros_like, params),
        }
        return jax_stale.begin(state) if stale else state

    # ------------------------------------------------------------------------------------------ statistics
    def host(state: State, step: int) -> State:
        if plan.asks(step):
            plan.read(step, np.asarray(state["wait"]).tolist())
        return state

    def facts(state: State) -> dict[str, int]:
        return {name: int(state[name]) for name in ("refreshed", "kept")}

    def observe(taps: Mapping[tuple[str, int], tuple[Array, Array]], weight: Array) -> Tree:
        calls: dict[str, list[tuple[Array, Array]]] = {}
        for (name, _), pair in taps.items():
            calls.setdefault(name, []).append(pair)
        sums: Tree = {}
        for name, pairs in calls.items():
            if (layer := plan.layers.get(name)) is None:
                continue
            rows, full = shapes[layer.parameters[0]][0], name in plan.whole
            sums |= {name + end: value for end, value in factors(layer, pairs, weight, rows, full=full).items()}
        return sums

    def prepare(statistics: Tree, state: State, *, reduce: Any) -> State:
        every = jnp.ones(len(plan.factors), bool)
        return mix(statistics, state, every, jnp.zeros(()), reduce)[0]

    def absorb(statistics: Tree, state: State, *, reduce: Any) -> State:
        due = state["wait"] <= 0 if stale else jnp.ones(len(plan.factors), bool)
        state, similar = mix(statistics, state, due, state["hyper"]["factor_decay"], reduce)
        return jax_stale.settle(state, due, similar) if stale else state

    def mix(statistics: Tree, state: State, due: Array, decay: Array, reduce: Any) -> tuple[State, Array]:
        """Take due statistics into the factors; which of them are still what they were, (factors, 2)."""
        values = [statistics[name] for name in plan.factors]
        traces = [jnp.trace(v) if n in buckets.place else v.sum() for n, v in zip(plan.factors, values, strict=True)]
        rest = reduce.exact({name: statistics[name] for name in plan.replicated} | {"trace": jnp.stack(traces)})
        new_trace = rest.pop("trace")
        sound = jnp.isfinite(new_trace)  # |a_ij|² ≤ a_ii a_jj: where the trace is finite, all is
        taken = due & sound
        old, tiny = state["mass"], jnp.finfo(new_trace.dtype).tiny
        mass = jnp.where(taken, decay * old + (1.0 - decay), old)
        trace = jnp.where(taken, decay * state["trace"] + (1.0 - decay) * new_trace, state["trace"])
        similar = jnp.zeros((len(plan.factors), 2), bool)

        def one(numbers: Array, factor: Array, new: Array, before: Array | None) -> Any:
            """The factors (m, …) with these numbers, mixed; what they were; and whether they are similar to that."""
            beside = lambda value: value[numbers].reshape(-1, *[1] * (factor.ndim - 1))  # noqa: E731
            mixed = jnp.where(beside(taken), decay * factor + (1.0 - decay) * new, factor)
            if before is None:
                return mixed, None, None
            last = factor / beside(jnp.maximum(old, tiny))
            now = mixed / beside(jnp.maximum(mass, tiny))
            found = jax_stale.alike(now, last, before, state["hyper"]["stale_alpha"])
            return mixed, jnp.where(beside(due), last, before), found

        past, replicated, before = state.get("before", {}), {}, {}
        for name, value in rest.items():
            parts = past[name][None] if stale else None
            found = one(jnp.array([plan.index[name]]), state["replicated"][name][None], value[None], parts)
            replicated[name] = found[0][0]
            if stale:
                before[name], similar = found[1][0], similar.at[plan.index[name]].set(found[2][0])
        past, factor, owned_before = state["owned"].get("before", {}), {}, {}
        for key, members in buckets.members.items():
            owners, stack = buckets.owners(key), jnp.stack([statistics[side] for side in members])
            new = reduce.to_owners(f"factor/{key}", stack, owners, symmetric=True)
            numbers = reduce.mine(jnp.array(plan.rows(key)), owners)
            factor[key], last, found = one(numbers, state["owned"]["factor"][key], new, past.get(key))
            if stale:
                found = reduce.gather("stale", found, owners, exact=True)
                owned_before[key], similar = last, similar.at[jnp.array(plan.rows(key))].set(found)
        counts = {"refreshed": state["refreshed"] + taken.sum(dtype=jnp.int32)}
        counts["kept"] = state["kept"] + (due & ~sound).sum(dtype=jnp.int32)
        state = state | counts | {"mass": mass, "trace": trace, "replicated": replicated}
        state["owned"] = {"factor": factor} | ({"before": owned_before} if stale else {})
        return state | ({"before": before} if stale else {}), similar & sound[:, None]

    # -------------------------------------------------------------------------------------------- inverses
    def program(name: str, state: State, *, reduce: Any) -> State:
        owners, previous = buckets.owners(name), state["inverse"][name]
        numbers = reduce.mine(jnp.array(plan.rows(name)), owners)
        due = reduce.mine(jnp.ones(len(previous), bool), owners)
        if stale:  # refreshed in this very step: it has waited for nothing yet
            due &= (state["wait"] == state["interval"][0])[numbers]
        scale = 1.0 / jnp.maximum(state["mass"], jnp.finfo(previous.dtype).tiny)

        def one(item: Any) -> Array:
            due, factor, scale, ridge, old = item
            inverse = lambda: damped_inverse(factor * scale, ridge)  # noqa: E731
            return jax.lax.cond(due, inverse, lambda: old) if stale else inverse()

        # one by one: with several CPU devices in a process, jaxlib 0.10.2 now and then hangs in batched factorisations
        items = (scale[numbers], ridges(plan, state, damping_split)[numbers], reduce.mine(previous, owners))
        found = jax.lax.map(one, (due, state["owned"]["factor"][name], *items))
        found = reduce.gather(f"inverse/{name}", found, owners, symmetric=True)
        good = usable(found)
        inverse = jnp.where(good[:, None, None], found, previous)
        kept = state["kept"] + (~good).sum(dtype=jnp.int32)
        return state | {"inverse": state["inverse"] | {name: inverse}, "kept": kept}

    # ---------------------------------------------------------------------------------------------- update
    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        at = state["hyper"]
        grads = decayed(grads, params, at["weight_decay"])
        velocity = state["velocity"]
        if momentum_on == "gradient":
            mean = lambda m, g: at["momentum"] * m + (1.0 - at["momentum"]) * g  # noqa: E731
            grads = velocity = jax.tree.map(mean, velocity, grads)
        direction = precondition(plan, state, grads, ridges(plan, state, damping_split))
        if plan.covered:
            direction |= clipped(plan, grads, direction, lr=at["lr"], bound=at["kl_clip"])
        if momentum_on == "direction":
            direction = velocity = jax.tree.map(lambda v, d: at["momentum"] * v + d, velocity, direction)
        updates = jax.tree.map(lambda v: -at["lr"] * v, direction)
        if rescale:
            for name in plan.kronecker:
                weight = layers[name].parameters[0]
                new = params[weight] + updates[weight]
                updates[weight] = new * ((2.0 * len(new)) ** 0.5 / (jnp.linalg.norm(new) + 1e-9)) - params[weight]
        return updates, state | {"velocity": velocity} | ({"wait": state["wait"] - 1} if stale else {})

    offers: dict[str, Any] = {"plan": plan, "host": host, "drain": lambda: None, "facts": facts, "observe": observe}
    return Optimizer(init, update, **offers, absorb=absorb, prepare=prepare, program=program)


make = kfac
