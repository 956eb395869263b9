"""SM3 in jax."""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.contract import Rows
from suite.optimizers._base.jax import Optimizer, decayed, dense, hyper, merged, still
from suite.optimizers.sm3 import EPSILON, check

Tree = dict[str, Array]


def sm3(*, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0, variant: str = "II") -> Optimizer:
    """AdaGrad from one number for each slice; arguments as in `suite.optimizers.sm3.torch.SM3`.

    A momentum that is 0 here stays 0, as no average is held for it: none is in `state["hyper"]`, and one put there is
    refused.
    """
    check(variant)
    plain = not momentum and not weight_decay  # the others reach every row of a table

    def init(params: Tree) -> dict[str, Any]:
        return {
            "hyper": hyper(lr=lr, weight_decay=weight_decay) | (hyper(momentum=momentum) if momentum else {}),
            "covers": {name: _covers(value) for name, value in params.items()},
            "velocity": jax.tree.map(jnp.zeros_like, params) if momentum else {},
        }

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        at, covers = state["hyper"], state["covers"]
        rows = {name: merged(grad) for name, grad in grads.items() if isinstance(grad, Rows)} if plain else {}
        grads = dense({name: grad for name, grad in grads.items() if name not in rows}, params)
        grads = decayed(grads, params, at["weight_decay"])
        direction, after, velocity = {}, {}, {}
        for name, grad in grads.items():
            bound, after[name] = _bound(covers[name], grad, variant)
            direction[name] = grad * lax.rsqrt(bound + EPSILON)
        if momentum:
            beta = at["momentum"]
            average = lambda v, d: beta * v + (1.0 - beta) * d  # noqa: E731
            velocity = direction = jax.tree.map(average, state["velocity"], direction)
        else:
            still(at)
        updates: dict[str, Any] = jax.tree.map(lambda d: -at["lr"] * d, direction)
        for name, (ids, values) in rows.items():  # which are the only slices
            before, square = covers[name][0], values * values
            row = before.at[ids].add(_largest(square)[0])  # in SM3-II too: max(μ + g²) = μ + max g²
            after[name] = [row, *covers[name][1:]]
            bound = before[ids] + square if variant == "II" else row[ids]
            updates[name] = Rows(ids, -at["lr"] * values * lax.rsqrt(bound + EPSILON))
        return updates, state | {"covers": after, "velocity": velocity}

    return Optimizer(init, update)


def _covers(value: Array) -> list[Array]:
    """μ = 0 for every slice along each axis, of the value's length there and 1 elsewhere."""
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
    """The largest element of every slice, axis by axis; an axis is gone before the next, so the whole is read twice."""
    found, rest = [], value
    for axis in range(value.ndim - 1):
        found.append(rest.max(tuple(range(axis + 1, value.ndim)), keepdims=True))
        rest = rest.max(axis, keepdims=True)
    return [*found, rest]


make = sm3
