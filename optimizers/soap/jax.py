"""SOAP in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.optimizers._base.jax import Optimizer, hyper
from suite.optimizers._linalg.jax import decomposable, finite
from suite.optimizers.soap.plan import SOAPPlan

Tree = dict[str, Array]
State = dict[str, Any]


def soap(
    *,
    shapes: Mapping[str, tuple[int, ...]],
    world: int = 1,
    lr: float = 3e-3,
    beta1: float = 0.95,
    beta2: float = 0.95,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    precondition_frequency: int = 10,
    start_preconditioning: int = 1,
    max_size: int = 512,
    one_sided: bool = False,
) -> Optimizer:
    """Adam in Shampoo's eigenbasis; arguments as in `suite.optimizers.soap.torch.SOAP`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan` and `program`; call them
    as the torch class says.
    """
    plan = SOAPPlan(
        shapes,
        world=world,
        max_size=max_size,
        one_sided=one_sided,
        precondition_frequency=precondition_frequency,
        start_preconditioning=start_preconditioning,
    )
    members = plan.members

    def init(params: Tree) -> State:
        kind, sizes = next(iter(params.values())).dtype, plan.sizes

        def moments() -> Tree:
            stacks = {key: jnp.zeros((len(names), *map(int, key.split("x"))), kind) for key, names in members.items()}
            return stacks | {name: jnp.zeros_like(params[name]) for name in plan.rest}

        return {
            "hyper": hyper(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay),
            "steps": jnp.zeros((), jnp.int32),
            "kept": jnp.zeros((), jnp.int32),
            "factor": {at: jnp.zeros((plan.count(at), size, size), kind) for at, size in sizes.items()},
            "basis": {at: jnp.tile(jnp.eye(size, dtype=kind), (plan.count(at), 1, 1)) for at, size in sizes.items()},
            "first": moments(),
            "second": moments(),
        }

    def program(name: str, state: State, *, reduce: Any) -> State:
        stacks, owners = plan.equal[name], plan.owners(name)
        together = [jnp.concatenate([state[kind][at] for at in stacks]) for kind in ("factor", "basis")]
        mine = [reduce.mine(stack, owners) for stack in together]
        fresh = reduce.gather(f"basis/{name}", refreshed(*mine, start=state["steps"] == plan.start), owners)
        usable = finite(fresh)
        fresh = jnp.where(usable, fresh, together[1])
        basis, first, begin = dict(state["basis"]), dict(state["first"]), 0
        for at in stacks:
            key, side = at.split("/")
            new, begin = fresh[begin : begin + plan.count(at)], begin + plan.count(at)
            turn, basis[at] = new.mT @ basis[at], new
            first[key] = turn @ first[key] if side == "left" else first[key] @ turn.mT
        kept = state["kept"] + (~usable).sum(dtype=state["kept"].dtype)
        return state | {"basis": basis, "first": first, "kept": kept}

    def turn(state: State, key: str, stack: Array, *, back: bool = False) -> Array:
        """Q_Lᵀ X Q_R, or `back` from there."""
        left, right = (state["basis"].get(f"{key}/{side}") for side in ("left", "right"))
        if left is not None:
            stack = (left if back else left.mT) @ stack
        if right is not None:
            stack = stack @ (right.mT if back else right)
        return stack

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        at, steps = state["hyper"], state["steps"] + 1
        beta1, beta2 = at["beta1"], at["beta2"]
        factor, turned = dict(state["factor"]), {name: grads[name] for name in plan.rest}
        for key, names in members.items():
            rows, columns = map(int, key.split("x"))
            stack = jnp.stack([grads[name].reshape(rows, columns) for name in names])
            for side, product in (("left", lambda s: s @ s.mT), ("right", lambda s: s.mT @ s)):
                if (where := f"{key}/{side}") in factor:
                    factor[where] = beta2 * factor[where] + (1.0 - beta2) * product(stack)
            turned[key] = turn(state, key, stack)
        first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], turned)
        second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], turned)

        def adam(m: Array, v: Array) -> Array:
            held1, held2 = (-jnp.expm1(steps * jnp.log(beta)) for beta in (beta1, beta2))  # 1 - βᵗ uncancelled
            return m / held1 / (jnp.sqrt(v / held2) + at["epsilon"])

        direction = jax.tree.map(adam, first, second)
        for key, names in members.items():
            stack = turn(state, key, direction[key], back=True)
            direction |= {name: stack[row].reshape(params[name].shape) for row, name in enumerate(names)}

        def change(name: str, w: Array) -> Array:
            return -at["lr"] * (direction[name] + at["weight_decay"] * w if w.ndim > 1 else direction[name])

        state = state | {"steps": steps, "factor": factor, "first": first, "second": second}
        return {name: change(name, w) for name, w in params.items()}, state

    return Optimizer(init, update, plan=plan, program=program, facts=lambda state: {"kept": int(state["kept"])})


def refreshed(factor: Array, basis: Array, *, start: Array | bool) -> Array:
    """Bases of eigenvectors (count, n, n), not finite where there is none; see the torch twin."""
    margin = factor.shape[-1] * jnp.finfo(factor.dtype).eps
    usable, safe, _ = decomposable(factor)

    # one by one: with several CPU devices in a process, jaxlib 0.10.2 hangs in batched factorisations now and then
    def decomposed() -> Array:
        return lax.map(lambda matrix: lax.linalg.eigh(matrix, symmetrize_input=False)[0], safe)

    def iterated() -> Array:
        power = safe @ basis
        estimate = (basis * power).sum(-2, keepdims=True)
        power = power + margin * estimate.max(-1, keepdims=True) * basis
        order = jnp.argsort(-estimate, axis=-1, stable=True)
        found = lax.map(lambda matrix: jnp.linalg.qr(matrix)[0], jnp.take_along_axis(power, order, -1, mode="clip"))
        return jnp.take_along_axis(found, jnp.argsort(order, axis=-1), -1, mode="clip")  # columns back in their places

    # in one program, or each would compile what stands around
    return jnp.where(usable, lax.cond(start, decomposed, iterated), jnp.nan)


make = soap
