"""SM3 in jax."""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

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
    validate_settings,
)
from suite.optimizers.sm3 import EPSILON
from suite.optimizers.sm3.settings import Settings

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def sm3(**settings: Any) -> Optimizer:
    """AdaGrad with one number for each slice; the rule is in the package's docstring.

    A momentum that is 0 here stays 0, because the state then holds no average: `state["hyper"]` has no momentum, and
    one that is put there is rejected.

    Args:
        settings: by name, as listed below.
    """
    rule = SM3(validate_settings(Settings, "sm3", settings))
    return Optimizer(rule.init, rule.update, settings=list_schedulable(rule.settings))


class SM3:
    """Functions of the optimizer, for these settings."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.moving = may_be_nonzero(settings.momentum)

    def init(self, params: Tree) -> State:
        """μ = 0 for every slice; a zero average of scaled gradients, if there is momentum."""
        return {
            "covers": {name: _covers(value) for name, value in params.items()},
            "velocity": jax.tree.map(jnp.zeros_like, params) if self.moving else {},
        }

    def update(self, grads: dict[str, Any], state: State, params: Tree) -> tuple[dict[str, Any], State]:
        """Return the changes of the parameters, and the next state."""
        hyper, covers = state["hyper"], dict(state["covers"])
        rows = self._rows(grads)
        grads = densify_gradients({name: grad for name, grad in grads.items() if name not in rows}, params)
        grads = add_weight_decay(grads, params, hyper["weight_decay"])
        direction, velocity = {}, {}
        for name, grad in grads.items():
            bound, covers[name] = _bound(covers[name], grad, self.settings.variant)
            direction[name] = grad * lax.rsqrt(bound + EPSILON)
        if self.moving:
            velocity = direction = self._average(state["velocity"], direction, hyper["momentum"])
        else:
            check_momentum(hyper)
        changes: dict[str, Any] = jax.tree.map(lambda d: -hyper["lr"] * d, direction)
        for name, (ids, values) in rows.items():
            bound, covers[name] = self._bound_by_rows(covers[name], ids, values)
            changes[name] = Rows(ids, -hyper["lr"] * values * lax.rsqrt(bound + EPSILON))
        return changes, state | {"covers": covers, "velocity": velocity}

    def _rows(self, grads: dict[str, Any]) -> dict[str, Rows]:
        """Select the gradients by rows that change only these rows; momentum and decay change every row of a table."""
        if self.moving or may_be_nonzero(self.settings.weight_decay):
            return {}
        return {name: merge_rows(grad) for name, grad in grads.items() if isinstance(grad, Rows)}

    @staticmethod
    def _average(velocity: Tree, direction: Tree, momentum: Array) -> Tree:
        """Return the next average of scaled gradients."""
        return jax.tree.map(lambda v, d: momentum * v + (1.0 - momentum) * d, velocity, direction)

    def _bound_by_rows(self, covers: list[Array], ids: Array, values: Array) -> tuple[Array, list[Array]]:
        """ν of the elements of some rows, which are the only slices, and the new μ."""
        before, square = covers[0], values * values
        row = before.at[ids].add(_largest(square)[0])  # in SM3-II too: max(μ + g²) = μ + max g²
        bound = before[ids] + square if self.settings.variant == "II" else row[ids]
        return bound, [row, *covers[1:]]


def _covers(value: Array) -> list[Array]:
    """μ = 0, one array for each axis, with the value's length along this axis and 1 along the others."""
    shapes = [[n if i == axis else 1 for i, n in enumerate(value.shape)] for axis in range(max(value.ndim, 1))]
    return [jnp.zeros(shape, value.dtype) for shape in shapes]


def _bound(covers: list[Array], grad: Array, variant: str) -> tuple[Array, list[Array]]:
    """ν of every element, and the new μ."""
    if variant == "II":
        bound = reduce(jnp.minimum, reversed(covers)) + grad * grad
        return bound, _largest(bound)
    after = [cover + largest for cover, largest in zip(covers, _largest(grad * grad), strict=True)]
    return reduce(jnp.minimum, reversed(after)), after


def _largest(value: Array) -> list[Array]:
    """Find every slice's largest element, by axis. Each axis is reduced before the next: two passes over the whole."""
    if not value.size:  # there is no largest element
        return _covers(value)
    maxima, rest = [], value
    for axis in range(value.ndim - 1):
        maxima.append(rest.max(tuple(range(axis + 1, value.ndim)), keepdims=True))
        rest = rest.max(axis, keepdims=True)
    return [*maxima, rest]


make = sm3
