"""AdaGrad in jax."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Rows
from suite.declared import describe_settings
from suite.optimizers._base.jax import (
    Optimizer,
    add_weight_decay,
    check_momentum,
    densify_gradients,
    list_schedulable,
    may_be_nonzero,
    merge_rows,
    reset_blocks,
    validate_settings,
)
from suite.optimizers.adagrad.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def adagrad(**settings: Any) -> Optimizer:
    """Diagonal AdaGrad; a gradient by rows changes only these rows, unless there is momentum or decay.

    A momentum that is 0 here stays 0, because the state then holds no velocity: `state["hyper"]` has no momentum, and
    one that is put there is rejected.

    Args:
        settings: by name, as listed below.
    """
    rule = Adagrad(validate_settings(Settings, "adagrad", settings))
    return Optimizer(rule.init, rule.update, settings=list_schedulable(rule.settings), reset=rule.reset)


class Adagrad:
    """Functions of the optimizer, for these settings."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.moving = may_be_nonzero(settings.momentum)

    def init(self, params: Tree) -> State:
        """Empty sums; zero velocity, if there is momentum."""
        return {
            "sum": jax.tree.map(jnp.zeros_like, params),
            "velocity": jax.tree.map(jnp.zeros_like, params) if self.moving else {},
        }

    def update(self, grads: dict[str, Any], state: State, params: Tree) -> tuple[dict[str, Any], State]:
        """Return the changes of the parameters, and the next state."""
        hyper, sums = state["hyper"], state["sum"]
        rows = self._rows(grads)
        grads = densify_gradients({name: grad for name, grad in grads.items() if name not in rows}, params)
        grads = add_weight_decay(grads, params, hyper["weight_decay"])
        total = {name: sums[name] + grad * grad for name, grad in grads.items()}
        total |= {name: sums[name].at[grad.ids].add(grad.values**2) for name, grad in rows.items()}
        direction = {name: _scaled(grad, total[name], hyper) for name, grad in grads.items()}
        velocity: Tree = {}
        if self.moving:
            velocity = direction = jax.tree.map(lambda v, d: hyper["momentum"] * v + d, state["velocity"], direction)
        else:
            check_momentum(hyper)
        changes: dict[str, Any] = jax.tree.map(lambda d: -hyper["lr"] * d, direction)
        for name, grad in rows.items():
            scaled = _scaled(grad.values, total[name][grad.ids], hyper)
            changes[name] = Rows(grad.ids, -hyper["lr"] * scaled)
        return changes, state | {"sum": total, "velocity": velocity}

    def _rows(self, grads: dict[str, Any]) -> dict[str, Rows]:
        """Select the gradients by rows that change only these rows; momentum and decay change every row of a table."""
        if self.moving or may_be_nonzero(self.settings.weight_decay):
            return {}
        return {name: merge_rows(grad) for name, grad in grads.items() if isinstance(grad, Rows)}

    def reset(self, state: State, moved: Tree) -> State:
        """Return the state with zeros for blocks that have moved: {parameter (n, …): (n,) booleans}."""
        return reset_blocks(state, moved, "sum", *(["velocity"] if self.moving else []))


def _scaled(grad: Array, total: Array, hyper: Tree) -> Array:
    """A gradient divided by the root of its summed squares."""
    return grad / (jnp.sqrt(hyper["initial_accumulator"] + total) + hyper["epsilon"])


make = adagrad
