"""SOAP in jax."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.contract import Reduce
from suite.declared import describe_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.jax import (
    Optimizer,
    after_programs,
    build_for_shapes,
    find_type,
    one_rank,
    validate_settings,
)
from suite.optimizers._linalg.jax import are_finite, map_matrices, replace_unusable_matrices
from suite.optimizers.soap import Settings
from suite.optimizers.soap.plan import SOAPPlan

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def soap(*, shapes: Mapping[str, tuple[int, ...]] | None = None, world: int = 1, **settings: Any) -> Optimizer:
    """Adam in Shampoo's eigenbasis; the rule is in the package's docstring.

    `update` does everything that is due, also inside `jax.jit`. With `shapes`, the optimizer also offers `plan` and
    `program`, which the suite's engine calls as the docstring of the torch class says.

    Args:
        shapes: the parameters' shapes, by name; None: those of the parameters that `init` and `update` receive.
        world: ranks that share the bases; more than one requires the suite's engine.
        settings: by name, as listed below.
    """
    chosen = validate_settings(Settings, "soap", settings, world=world)

    def build(shapes: Mapping[str, tuple[int, ...]]) -> Optimizer:
        rule = SOAP(SOAPPlan(shapes, chosen, world=int(world)))
        offers = {"plan": rule.plan, "program": rule.program, "facts": rule.facts}
        return Optimizer(rule.init, rule.update, settings=chosen.scheduled(), shapes=shapes, **offers)

    return build_for_shapes(build, shapes)


class SOAP:
    """Functions of the optimizer, for this plan."""

    def __init__(self, plan: SOAPPlan):
        self.plan = plan

    def init(self, params: Tree) -> State:
        """Statistics and moments zero, bases the identity."""
        kind, plan = find_type(params), self.plan
        sizes = plan.sizes.items()
        return {
            "steps": jnp.zeros((), jnp.int32),
            "kept": jnp.zeros((), jnp.int32),
            "factor": {stack: jnp.zeros((plan.count(stack), size, size), kind) for stack, size in sizes},
            "basis": {stack: jnp.tile(jnp.eye(size, dtype=kind), (plan.count(stack), 1, 1)) for stack, size in sizes},
            "first": self._moments(params, kind),
            "second": self._moments(params, kind),
        }

    def _moments(self, params: Tree, kind: Any) -> Tree:
        """Zeros for each stack of matrices, and for each parameter without a basis."""
        shapes = {key: (len(names), *map(int, key.split("x"))) for key, names in self.plan.members.items()}
        stacks = {key: jnp.zeros(shape, kind) for key, shape in shapes.items()}
        return stacks | {name: jnp.zeros_like(params[name]) for name in self.plan.rest}

    def program(self, name: str, state: State, *, reduce: Reduce[Array]) -> State:
        """Refresh all bases of one size in the state; a basis that fails stays as it was, and is counted."""
        plan = self.plan
        stacks, owners = plan.equal[name], plan.owners(name)
        factors, bases = (jnp.concatenate([state[kind][stack] for stack in stacks]) for kind in ("factor", "basis"))
        share = (reduce.mine(factors, owners), reduce.mine(bases, owners))
        fresh = reduce.gather(f"basis/{name}", refresh_basis(*share, start=state["steps"] == plan.start), owners)
        usable = are_finite(fresh)
        fresh = jnp.where(usable, fresh, bases)
        basis, first, begin = dict(state["basis"]), dict(state["first"]), 0
        for stack in stacks:
            key, side = stack.split("/")
            new, begin = fresh[begin : begin + plan.count(stack)], begin + plan.count(stack)
            rotation, basis[stack] = new.mT @ basis[stack], new
            first[key] = rotation @ first[key] if side == "left" else first[key] @ rotation.mT
        kept = state["kept"] + (~usable).sum(dtype=state["kept"].dtype)
        return state | {"basis": basis, "first": first, "kept": kept}

    def update(
        self, grads: Tree, state: State, params: Tree, *, reduce: Reduce[Array] | None = None
    ) -> tuple[Tree, State]:
        """Compute the parameters' changes and the next state; without `reduce` also the refreshes that are due."""
        if reduce is None:  # no engine has called `program`
            state = self._refreshed_alone(state)
        state = state | {"steps": state["steps"] + 1}
        stacks = {key: self._stacked(key, grads) for key in self.plan.members}
        turned = {name: grads[name] for name in self.plan.rest}
        turned |= {key: self._turned(state, key, stack) for key, stack in stacks.items()}
        direction, moments = _adam(turned, state)
        for key, names in self.plan.members.items():
            stack = self._turned(state, key, direction[key], back=True)
            direction |= {name: stack[row].reshape(params[name].shape) for row, name in enumerate(names)}
        hyper = state["hyper"]

        def change(name: str, w: Array) -> Array:
            return -hyper["lr"] * (direction[name] + hyper["weight_decay"] * w if w.ndim > 1 else direction[name])

        changes = {name: change(name, w) for name, w in params.items()}
        return changes, state | moments | {"factor": self._absorbed(stacks, state)}

    def _refreshed_alone(self, state: State) -> State:
        """Return the state after the refreshes that are due, without an engine."""
        one_rank("soap", self.plan.world)
        alone = functools.partial(self.program, reduce=ALONE)
        return after_programs(self.plan.programs, self.plan.cycle, state, state["steps"], alone)

    def _stacked(self, key: str, grads: Tree) -> Array:
        """Return the gradients of one stack as matrices (count, rows, columns)."""
        rows, columns = map(int, key.split("x"))
        return jnp.stack([grads[name].reshape(rows, columns) for name in self.plan.members[key]])

    def _absorbed(self, stacks: Tree, state: State) -> Tree:
        """Return the statistics, with the gradients in these stacks added."""
        beta2, factor = state["hyper"]["beta2"], dict(state["factor"])
        for key, stack in stacks.items():
            for side, one, other in (("left", stack, stack.mT), ("right", stack.mT, stack)):
                if (name := f"{key}/{side}") in factor:
                    factor[name] = beta2 * factor[name] + (1.0 - beta2) * (one @ other)
        return factor

    @staticmethod
    def _turned(state: State, key: str, stack: Array, *, back: bool = False) -> Array:
        """Matrices in the coordinates of their bases, Q_Lᵀ X Q_R, or `back` from there."""
        left, right = (state["basis"].get(f"{key}/{side}") for side in ("left", "right"))
        if left is not None:
            stack = (left if back else left.mT) @ stack
        if right is not None:
            stack = stack @ (right.mT if back else right)
        return stack

    @staticmethod
    def facts(state: State) -> dict[str, float]:
        """How often a basis could not be refreshed, for the result."""
        return {"kept": int(state["kept"])}


def _adam(grads: Tree, state: State) -> tuple[Tree, State]:
    """Adam's directions m̂ / (√v̂ + ε), and the next moments; `state` counts this step."""
    hyper = state["hyper"]
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state["second"], grads)
    # what the weights in each average sum to: 1 - βᵗ, computed without cancellation
    weight1, weight2 = (-jnp.expm1(state["steps"] * jnp.log(beta)) for beta in (beta1, beta2))
    direction = jax.tree.map(lambda m, v: m / weight1 / (jnp.sqrt(v / weight2) + hyper["epsilon"]), first, second)
    return direction, {"first": first, "second": second}


def refresh_basis(factor: Array, basis: Array, *, start: Array | bool) -> Array:
    """Bases of eigenvectors (count, n, n), not finite where there is none; as `refresh_basis` in torch.py."""
    margin = factor.shape[-1] * jnp.finfo(factor.dtype).eps
    usable, safe, _ = replace_unusable_matrices(factor)

    def decomposed() -> Array:
        return map_matrices(lambda matrix: lax.linalg.eigh(matrix, symmetrize_input=False)[0], safe)

    def iterated() -> Array:
        power = safe @ basis
        estimate = (basis * power).sum(-2, keepdims=True)
        power = power + margin * estimate.max(-1, keepdims=True) * basis
        order = jnp.argsort(-estimate, axis=-1, stable=True)
        ordered = jnp.take_along_axis(power, order, -1, mode="clip")
        columns = map_matrices(lambda matrix: jnp.linalg.qr(matrix)[0], ordered)
        return jnp.take_along_axis(columns, jnp.argsort(order, axis=-1), -1, mode="clip")  # in their old places

    # in one program: two programs would each compile the code around it
    return jnp.where(usable, lax.cond(start, decomposed, iterated), jnp.nan)


make = soap
