"""Shampoo in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers._linalg.jax import inverse_root
from suite.optimizers.shampoo.plan import GRAFT_EPSILON, ORDER, Grid, ShampooPlan

Tree = dict[str, Array]
State = dict[str, Any]


def shampoo(
    *,
    shapes: Mapping[str, tuple[int, ...]],
    world: int = 1,
    lr: float = 0.1,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    beta2: float = 0.99,
    epsilon: float = 1e-6,
    block_size: int = 128,
    inverse_interval: int = 1,
    start_preconditioning: int = 5,
    graft: str = "sgd",
    root: str = "auto",
) -> Optimizer:
    """Blocked Shampoo with grafting; arguments as in `suite.optimizers.shampoo.torch.Shampoo`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan` and `program`; call them
    as the torch class says.
    """
    plan = ShampooPlan(
        shapes,
        world=world,
        block_size=block_size,
        inverse_interval=inverse_interval,
        start_preconditioning=start_preconditioning,
        graft=graft,
        root=root,
    )

    def init(params: Tree) -> State:
        kind = next(iter(params.values())).dtype
        roots = {key: jnp.eye(size, dtype=kind) for key, size in plan.sizes.items()}
        return {
            "hyper": hyper(lr=lr, momentum=momentum, weight_decay=weight_decay, beta2=beta2, epsilon=epsilon),
            "factor": {key: jnp.zeros((plan.count(key), size, size), kind) for key, size in plan.sizes.items()},
            "root": {key: jnp.tile(root, (plan.count(key), 1, 1)) for key, root in roots.items()},
            "refreshed": jnp.zeros((), bool),
            "kept": jnp.zeros((), jnp.int32),
            "mass": jnp.zeros((), kind),
            "square": {} if graft == "sgd" else jax.tree.map(jnp.zeros_like, params),
            "velocity": jax.tree.map(jnp.zeros_like, params),
        }

    def program(name: str, state: State, *, reduce: Any) -> State:
        stack = jnp.pad(state["factor"][name], ((0, plan.filler(name)), (0, 0), (0, 0)))
        mine = inverse_root(reduce.mine(stack), ORDER, epsilon=state["hyper"]["epsilon"], method=root)
        fresh = reduce.gather(f"root/{name}", mine)[: plan.count(name)]
        usable = jnp.isfinite(fresh).all((1, 2))
        fresh = jnp.where(usable[:, None, None], fresh, state["root"][name])
        return state | {
            "root": state["root"] | {name: fresh},
            "refreshed": jnp.ones_like(state["refreshed"]),
            "kept": state["kept"] + (~usable).sum(dtype=state["kept"].dtype),
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
        factor, direction = dict(state["factor"]), dict(steps)
        for key, names in plan.stacked.items():
            left, right, grids = f"{key}/left", f"{key}/right", [plan.grids[name] for name in names]
            stack = jnp.concatenate([cut(grads[name], grid) for name, grid in zip(names, grids, strict=True)])
            factor[left] = past * factor[left] + present * (stack @ stack.mT)
            factor[right] = past * factor[right] + present * (stack.mT @ stack)
            stack, start = state["root"][left] @ stack @ state["root"][right], 0
            for name, grid in zip(names, grids, strict=True):
                whole = join(stack[start : start + grid.blocks], grid).reshape(steps[name].shape)
                start += grid.blocks
                norm, goal = jnp.sqrt((whole * whole).sum()), jnp.sqrt((steps[name] * steps[name]).sum())
                known = state["refreshed"] & (norm > 0)
                direction[name] = jnp.where(known, whole * (goal / jnp.where(known, norm, 1.0)), steps[name])
        velocity = jax.tree.map(lambda v, d: at["momentum"] * v + d, state["velocity"], direction)
        ahead = jax.tree.map(lambda d, v: d + at["momentum"] * v, direction, velocity) if nesterov else velocity
        changed |= {"factor": factor, "velocity": velocity}
        return jax.tree.map(lambda d: -at["lr"] * d, ahead), state | changed

    return Optimizer(init, update, plan=plan, program=program, facts=lambda state: {"kept": int(state["kept"])})


def cut(value: Array, grid: Grid) -> Array:
    """A parameter's blocks, row by row: (blocks, height, width)."""
    below, right = grid.down * grid.height - grid.rows, grid.across * grid.width - grid.columns
    padded = jnp.pad(value.reshape(grid.rows, grid.columns), ((0, below), (0, right)))
    apart = padded.reshape(grid.down, grid.height, grid.across, grid.width)
    return apart.swapaxes(1, 2).reshape(-1, grid.height, grid.width)


def join(blocks: Array, grid: Grid) -> Array:
    """The matrix (rows, columns) that `cut` made these blocks of."""
    apart = blocks.reshape(grid.down, grid.across, grid.height, grid.width).swapaxes(1, 2)
    whole = apart.reshape(grid.down * grid.height, grid.across * grid.width)
    return whole[: grid.rows, : grid.columns]


make = shampoo
