"""Shampoo in jax."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.optimizers._base.jax import Optimizer, decayed, hyper, local, with_local
from suite.optimizers._linalg.host import HostRoots
from suite.optimizers._linalg.jax import finite, inverse_root
from suite.optimizers.shampoo.jax_blocks import along, cut, join, turned
from suite.optimizers.shampoo.plan import GRAFT_EPSILON, ShampooPlan, split_name

Tree = dict[str, Array]
State = dict[str, Any]


def shampoo(
    *,
    shapes: Mapping[str, tuple[int, ...]],
    tables: Collection[str] = (),
    world: int = 1,
    lr: float = 0.1,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    beta2: float = 0.99,
    epsilon: float = 1e-6,
    graft: str = "sgd",
    root: str = "auto",
    **options: Any,
) -> Optimizer:
    """Blocked Shampoo with grafting; arguments as in `suite.optimizers.shampoo.torch.Shampoo`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan`, `program` and `host`;
    call them as the torch class says.
    """
    plan = ShampooPlan(shapes, tables, world=world, graft=graft, root=root, **options)
    roots = HostRoots()

    def init(params: Tree) -> State:
        kind = next(iter(params.values())).dtype
        eyes = {stack: jnp.eye(plan.size(stack), dtype=kind) for stack in plan.counts}
        state = {
            "hyper": hyper(lr=lr, momentum=momentum, weight_decay=weight_decay, beta2=beta2, epsilon=epsilon),
            "factor": {stack: jnp.zeros((plan.counts[stack], *eye.shape), kind) for stack, eye in eyes.items()},
            "root": {stack: jnp.tile(eye, (plan.counts[stack], 1, 1)) for stack, eye in eyes.items()},
            "refreshed": jnp.zeros((), bool),
            "kept": jnp.zeros((), jnp.int32),
            "mass": jnp.zeros((), kind),
            "square": {} if graft == "sgd" else jax.tree.map(jnp.zeros_like, params),
            "velocity": jax.tree.map(jnp.zeros_like, params),
        }
        if plan.stagger:
            state["turn"] = {stack: jnp.zeros((), jnp.int32) for stack in plan.counts}
        if plan.lag:  # split by rank: statistics on their way to the host, then the roots that come back
            owned = {stack: jnp.zeros((plan.share(stack) * world, *eye.shape), kind) for stack, eye in eyes.items()}
            state["pending"] = {"owned": owned, "epsilon": hyper(epsilon=epsilon)["epsilon"]}
        return state

    def host(state: State, step: int) -> State:
        flying, landing = plan.flying(step), plan.landing(step)
        if not flying:
            return state
        pending = state["pending"]
        owned, ridge = pending["owned"], float(pending["epsilon"])
        for stack in flying:
            if stack not in roots.jobs:
                roots.begin(stack, local(owned[stack]), plan.order(stack), ridge)
        found = {at: roots.finish(at, local(owned[at]), plan.order(at), ridge) for at in landing}
        found = {at: with_local(owned[at], value) for at, value in found.items()}
        return state | {"pending": pending | {"owned": owned | found}}

    def program(name: str, state: State, *, reduce: Any) -> State:
        stack, what = split_name(name)
        factor, old, ridge = state["factor"][stack], state["root"][stack], state["hyper"]["epsilon"]
        if what == "take":
            pending = state["pending"]
            owned = pending["owned"] | {stack: reduce.mine(factor, plan.owners(len(factor)))}
            return state | {"pending": pending | {"owned": owned, "epsilon": ridge}}
        rows = None
        if what == "turn":
            turns = plan.rows(stack)
            table = np.full((len(turns), max(map(len, turns))), len(factor))  # a row too far: neither read nor written
            for turn, chosen in enumerate(turns):
                table[turn, : len(chosen)] = chosen
            rows = jnp.asarray(table)[state["turn"][stack]]
            factor, old = (value.at[rows].get(mode="fill", fill_value=0) for value in (factor, old))
            state = state | {"turn": state["turn"] | {stack: (state["turn"][stack] + 1) % len(turns)}}
        if what == "install":
            mine = state["pending"]["owned"][stack]
        else:
            share = reduce.mine(factor, plan.owners(len(factor)))
            mine = inverse_root(share, plan.order(stack), epsilon=ridge, method=root)
        fresh = reduce.gather(f"root/{stack}", mine, plan.owners(len(old)), symmetric=True)
        usable = finite(fresh)
        failed = ~usable if rows is None else ~usable[:, 0, 0] & (rows < len(state["root"][stack]))
        fresh = jnp.where(usable, fresh, old)
        if rows is not None:
            fresh = state["root"][stack].at[rows].set(fresh, mode="drop")
        return state | {
            "root": state["root"] | {stack: fresh},
            "refreshed": jnp.ones_like(state["refreshed"]),
            "kept": state["kept"] + failed.sum(dtype=state["kept"].dtype),
        }

    def weights(state: State) -> tuple[Array, Array]:
        beta2 = state["hyper"]["beta2"]
        return beta2, jnp.where(beta2 < 1, 1.0 - beta2, 1.0)

    def grafted(grads: Tree, state: State) -> tuple[Tree, State]:
        """The grafted method's own steps, without learning rate and momentum."""
        past, present = weights(state)
        mass = past * state["mass"] + present
        if graft == "sgd":
            return grads, {"mass": mass}
        if graft == "adagrad":
            past, present = 1.0, 1.0
        square = jax.tree.map(lambda old, g: past * old + present * g * g, state["square"], grads)
        scale = mass if graft == "adam" else 1.0
        steps = jax.tree.map(lambda g, second: g / (jnp.sqrt(second / scale) + GRAFT_EPSILON), grads, square)
        return steps, {"mass": mass, "square": square}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        at = state["hyper"]
        grads = decayed(grads, params, at["weight_decay"])
        steps, changed = grafted(grads, state)
        past, present = weights(state)
        direction, products = dict(steps), {where: list[Array]() for where in plan.counts}
        for key, names in plan.stacked.items():
            grids = [plan.grids[name] for name in names]
            stack = jnp.concatenate([cut(grads[name], grid) for name, grid in zip(names, grids, strict=True)])
            for side in plan.factored[key]:
                x = along(stack, side)
                products[plan.place[key, side][0]].append(x @ x.mT)
            for side in plan.factored[key]:
                where, rows = plan.place[key, side]
                stack = turned(stack, state["root"][where][rows], side)
            start = 0
            for name, grid in zip(names, grids, strict=True):
                whole = join(stack[start : start + grid.blocks], grid).reshape(steps[name].shape)
                start += grid.blocks
                norm, goal = jnp.sqrt((whole * whole).sum()), jnp.sqrt((steps[name] * steps[name]).sum())
                known = state["refreshed"] & (norm > 0)
                direction[name] = jnp.where(known, whole * (goal / jnp.where(known, norm, 1.0)), steps[name])
        velocity = jax.tree.map(lambda v, d: at["momentum"] * v + d, state["velocity"], direction)
        ahead = jax.tree.map(lambda d, v: d + at["momentum"] * v, direction, velocity) if nesterov else velocity
        fresh = {where: jnp.concatenate(found) for where, found in products.items()}  # in the order of `place`
        factor = jax.tree.map(lambda old, new: past * old + present * new, state["factor"], fresh)
        changed |= {"factor": factor, "velocity": velocity}
        return jax.tree.map(lambda d: -at["lr"] * d, ahead), state | changed

    def facts(state: State) -> dict[str, float]:
        return {"kept": int(state["kept"])}

    return Optimizer(init, update, plan=plan, program=program, host=host, drain=roots.drain, facts=facts)


make = shampoo
