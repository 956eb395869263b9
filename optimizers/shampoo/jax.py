"""Shampoo in jax."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.contract import Reduce
from suite.declared import describe_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.jax import (
    Optimizer,
    add_weight_decay,
    after_programs,
    build_for_shapes,
    find_type,
    one_rank,
    validate_settings,
)
from suite.optimizers._base.jax_mesh import read_local_slices, replace_local_slices
from suite.optimizers._linalg.host import HostRoots
from suite.optimizers._linalg.jax import are_finite, inverse_root
from suite.optimizers.shampoo import Settings
from suite.optimizers.shampoo.jax_blocks import cut_blocks, join_blocks, multiply_side, unfold_side
from suite.optimizers.shampoo.jax_graft import compute_averaging_weights, compute_grafted_steps
from suite.optimizers.shampoo.plan import ShampooPlan, split_name

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def shampoo(
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    tables: Collection[str] = (),
    world: int = 1,
    **settings: Any,
) -> Optimizer:
    """Blocked Shampoo with grafting; the rule is in the package's docstring.

    `update` does everything that is due, also inside `jax.jit`; with `lag` the roots are computed in the step in which
    they are installed, because compiled code has no thread of the host. With `shapes`, the optimizer also offers
    `plan`, `host`, `collect` and `program`, which the suite's engine calls as the docstring of the torch class says.

    Args:
        shapes: the parameters' shapes, by name; None: those of the parameters that `init` and `update` receive.
        tables: names of the embeddings; read if `embeddings` is false.
        world: ranks that share the roots; more than one requires the suite's engine.
        settings: by name, as listed below.
    """
    chosen = validate_settings(Settings, "shampoo", settings, world=world)

    def build(shapes: Mapping[str, tuple[int, ...]]) -> Optimizer:
        rule = Shampoo(ShampooPlan(shapes, chosen, tables=tables, world=int(world)), chosen)
        return Optimizer(
            rule.init,
            rule.update,
            settings=chosen.scheduled(),
            shapes=shapes,
            plan=rule.plan,
            collect=rule.collect,
            program=rule.program,
            host=rule.host,
            drain=rule.roots.drain,
            facts=rule.facts,
        )

    return build_for_shapes(build, shapes)


class Shampoo:
    """Functions of the optimizer, for this plan and these settings."""

    def __init__(self, plan: ShampooPlan, settings: Settings):
        self.plan, self.settings = plan, settings
        self.roots = HostRoots()

    def init(self, params: Tree) -> State:
        """Statistics and velocity zero, roots the identity."""
        kind, plan = find_type(params), self.plan
        eyes = {stack: jnp.eye(plan.size(stack), dtype=kind) for stack in plan.counts}
        state = {
            "factor": {stack: jnp.zeros((plan.counts[stack], *eye.shape), kind) for stack, eye in eyes.items()},
            "root": {stack: jnp.tile(eye, (plan.counts[stack], 1, 1)) for stack, eye in eyes.items()},
            "refreshed": jnp.zeros((), bool),
            "kept": jnp.zeros((), jnp.int32),
            "steps": jnp.zeros((), jnp.int32),
            "mass": jnp.zeros((), kind),
            "square": {} if self.settings.graft == "sgd" else jax.tree.map(jnp.zeros_like, params),
            "velocity": jax.tree.map(jnp.zeros_like, params),
        }
        if plan.stagger:
            state["turn"] = {stack: jnp.zeros((), jnp.int32) for stack in plan.counts}
        if plan.lag:  # split by rank: statistics that the host reads, then the roots that it computed
            rows = {stack: plan.share(stack) * plan.world for stack in eyes}
            owned = {stack: jnp.zeros((rows[stack], *eye.shape), kind) for stack, eye in eyes.items()}
            state["pending"] = {"owned": owned, "epsilon": jnp.zeros((), kind)}
        return state

    # --------------------------------------------------------------------------------------------------- refreshes
    def host(self, state: State, step: int) -> State:
        """Start the host's thread on the statistics that wait for it, and take the roots that are due before `step`."""
        plan, flying = self.plan, self.plan.flying(step)
        if not flying:
            return state
        pending = state["pending"]
        owned, ridge = pending["owned"], float(pending["epsilon"])
        for stack in flying:
            if stack not in self.roots.jobs:
                self.roots.begin(stack, read_local_slices(owned[stack]), plan.order(stack), ridge)
        landed = {}
        for stack in plan.landing(step):
            roots = self.roots.finish(stack, read_local_slices(owned[stack]), plan.order(stack), ridge)
            landed[stack] = replace_local_slices(owned[stack], roots)
        return state | {"pending": pending | {"owned": owned | landed}}

    def collect(self, grads: Tree, state: State, params: Tree) -> State:
        """Return the state with the gradients added to the statistics."""
        grads = add_weight_decay(grads, params, state["hyper"]["weight_decay"])
        past, gain = compute_averaging_weights(state["hyper"]["beta2"])
        products = {stack: list[Array]() for stack in self.plan.counts}
        for key in self.plan.stacked:
            blocks = self._blocks(key, grads)
            for side in self.plan.factored[key]:
                x = unfold_side(blocks, side)
                products[self.plan.place[key, side][0]].append(x @ x.mT)
        new = {stack: jnp.concatenate(parts) for stack, parts in products.items()}  # in the order of `place`
        return state | {"factor": jax.tree.map(lambda old, new: past * old + gain * new, state["factor"], new)}

    def program(self, name: str, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state after one of `plan.programs(step)`; a root that fails stays as it was, and is counted."""
        stack, action = split_name(name)
        factor, old, plan = state["factor"][stack], state["root"][stack], self.plan
        if action == "take":
            pending = state["pending"]
            owned = pending["owned"] | {stack: reduce.mine(factor, plan.owners(len(factor)))}
            return state | {"pending": pending | {"owned": owned, "epsilon": state["hyper"]["epsilon"]}}
        if action == "turn":
            return self._refreshed_in_turn(stack, state, reduce)
        installed = action == "install"
        share = state["pending"]["owned"][stack] if installed else self._computed(stack, factor, state, reduce)
        fresh, usable = self._gathered(stack, share, len(factor), reduce)
        return self._with_roots(state, stack, jnp.where(usable, fresh, old), ~usable)

    def _refreshed_in_turn(self, stack: str, state: State, reduce: Reduce[Array]) -> State:
        """Return the state after a refresh of those roots of a stack whose turn it is."""
        turns, roots, turn = self.plan.rows(stack), state["root"][stack], state["turn"][stack]
        # turns of fewer rows are filled up with a row that is neither read nor written
        table = np.full((len(turns), max(map(len, turns))), len(roots))
        for number, chosen in enumerate(turns):
            table[number, : len(chosen)] = chosen
        rows = jnp.asarray(table)[turn]
        factor, old = (value.at[rows].get(mode="fill", fill_value=0) for value in (state["factor"][stack], roots))
        fresh, usable = self._gathered(stack, self._computed(stack, factor, state, reduce), len(factor), reduce)
        failed = ~usable[:, 0, 0] & (rows < len(roots))
        roots = roots.at[rows].set(jnp.where(usable, fresh, old), mode="drop")
        state = state | {"turn": state["turn"] | {stack: (turn + 1) % len(turns)}}
        return self._with_roots(state, stack, roots, failed)

    def _computed(self, stack: str, factor: Array, state: State, reduce: Reduce[Array]) -> Array:
        """Return the roots of this rank's slice of some statistics."""
        share, ridge = reduce.mine(factor, self.plan.owners(len(factor))), state["hyper"]["epsilon"]
        return inverse_root(share, self.plan.order(stack), epsilon=ridge, method=self.settings.root)

    def _gathered(self, stack: str, share: Array, count: int, reduce: Reduce[Array]) -> tuple[Array, Array]:
        """Return the roots of all ranks, and which of them are finite (count, 1, 1)."""
        fresh = reduce.gather(f"root/{stack}", share, self.plan.owners(count), symmetric=True)
        return fresh, are_finite(fresh)

    @staticmethod
    def _with_roots(state: State, stack: str, roots: Array, failed: Array) -> State:
        """Return the state with these roots of a stack; `failed` says which ones could not be refreshed."""
        return state | {
            "root": state["root"] | {stack: roots},
            "refreshed": jnp.ones_like(state["refreshed"]),
            "kept": state["kept"] + failed.sum(dtype=state["kept"].dtype),
        }

    def _alone(self, name: str, state: State) -> State:
        """Return the state after a program without an engine; computes what the host's thread would have computed."""
        stack, action = split_name(name)
        if action == "install":
            pending, order = state["pending"], self.plan.order(stack)
            roots = inverse_root(pending["owned"][stack], order, epsilon=pending["epsilon"], method="eigh")
            state = state | {"pending": pending | {"owned": pending["owned"] | {stack: roots}}}
        return self.program(name, state, reduce=ALONE)

    # ------------------------------------------------------------------------------------------------------ update
    def update(
        self, grads: Tree, state: State, params: Tree, *, reduce: Reduce[Array] | None = None
    ) -> tuple[Tree, State]:
        """Compute the parameters' changes and the next state; without `reduce` also the refreshes that are due."""
        if reduce is None:  # no engine has called collect and program
            one_rank("shampoo", self.plan.world)
            state = self.collect(grads, state, params)
            state = after_programs(self.plan.programs, self.plan.cycle, state, state["steps"], self._alone)
        lr, momentum = state["hyper"]["lr"], state["hyper"]["momentum"]
        grads = add_weight_decay(grads, params, state["hyper"]["weight_decay"])
        steps, changed = compute_grafted_steps(self.settings.graft, grads, state)
        direction = steps | self._preconditioned(grads, steps, state)
        velocity = jax.tree.map(lambda v, d: momentum * v + d, state["velocity"], direction)
        ahead = velocity
        if self.settings.nesterov:
            ahead = jax.tree.map(lambda d, v: d + momentum * v, direction, velocity)
        changed |= {"velocity": velocity, "steps": state["steps"] + 1}
        return jax.tree.map(lambda d: -lr * d, ahead), state | changed

    def _preconditioned(self, grads: Tree, steps: Tree, state: State) -> Tree:
        """Turn preconditioned parameters' steps into Shampoo's direction; before the first refresh, leave them."""
        direction = {}
        for key, names in self.plan.stacked.items():
            stack = self._blocks(key, grads)
            for side in self.plan.factored[key]:
                place, rows = self.plan.place[key, side]
                stack = multiply_side(stack, state["root"][place][rows], side)
            start = 0
            for name in names:
                grid = self.plan.grids[name]
                blocks = stack[start : start + grid.blocks]
                if self.settings.graft_blocks:
                    blocks = jax.vmap(_as_long, (0, 0, None))(blocks, cut_blocks(steps[name], grid), state["refreshed"])
                whole = join_blocks(blocks, grid).reshape(steps[name].shape)
                direction[name] = (
                    whole if self.settings.graft_blocks else _as_long(whole, steps[name], state["refreshed"])
                )
                start += grid.blocks
        return direction

    def _blocks(self, key: str, grads: Tree) -> Array:
        """Return the blocks of one bucket, in one stack."""
        return jnp.concatenate([cut_blocks(grads[name], self.plan.grids[name]) for name in self.plan.stacked[key]])

    @staticmethod
    def facts(state: State) -> dict[str, float]:
        """How often a root could not be refreshed, for the result."""
        return {"kept": int(state["kept"])}


def _as_long(direction: Array, step: Array, refreshed: Array) -> Array:
    """A direction with the length of the grafted step; the step itself before the first refresh."""
    norm, goal = jnp.sqrt((direction * direction).sum()), jnp.sqrt((step * step).sum())
    known = refreshed & (norm > 0) & jnp.isfinite(norm) & jnp.isfinite(goal)  # squares may overflow
    return jnp.where(known, direction * (goal / jnp.where(known, norm, 1.0)), step)


make = shampoo
