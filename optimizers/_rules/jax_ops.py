"""The operations of first-order rules in jax."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from suite.contract import Rows
from suite.optimizers._base.jax import merge_rows
from suite.optimizers._rules import Ops

Arrays = list[Array]


class JaxOps(Ops[Array]):
    """Operations on lists of arrays; a move returns the changes of the weights."""

    xp = jnp

    def average(self, mean: Arrays, values: Arrays, beta: float) -> Arrays:
        return [beta * m + (1.0 - beta) * x for m, x in zip(mean, values, strict=True)]

    def average_squares(self, mean: Arrays, values: Arrays, beta: float) -> Arrays:
        return [beta * v + (1.0 - beta) * x * x for v, x in zip(mean, values, strict=True)]

    def accumulate(self, total: Arrays, values: Arrays, mu: float) -> Arrays:
        return [mu * v + x for v, x in zip(total, values, strict=True)]

    def accumulate_squares(self, total: Arrays, values: Arrays) -> Arrays:
        return [s + x * x for s, x in zip(total, values, strict=True)]

    def accumulate_ratios(self, total: Arrays, values: Arrays, scale: Arrays, mu: float, rate: float = 1.0) -> Arrays:
        return [mu * v + rate * (x / s) for v, x, s in zip(total, values, scale, strict=True)]

    def assign(self, old: Array, new: Array) -> Array:
        return new

    def weigh(self, beta: float, steps: Array) -> Array:
        return -jnp.expm1(steps * jnp.log(beta))

    def root(self, values: Arrays, weight: Array | None = None, *, inside: float = 0.0, outside: float = 0.0) -> Arrays:
        return [jnp.sqrt((v + inside) / (1.0 if weight is None else weight)) + outside for v in values]

    def divide(self, values: Arrays, by: Arrays | Array) -> Arrays:
        return [x / y for x, y in zip(values, by if isinstance(by, list) else [by] * len(values), strict=True)]

    def variance(self, squares: Arrays, mean: Arrays) -> Arrays:
        return [jnp.maximum(v - m * m, 0.0) for v, m in zip(squares, mean, strict=True)]

    def add(self, values: Arrays, others: Arrays, factor: float) -> Arrays:
        return [x + factor * y for x, y in zip(values, others, strict=True)]

    def add_decay(self, values: Arrays, weights: Arrays, decay: float, *, owned: bool = False) -> Arrays:
        return [x + decay * w if w.ndim > 1 else x for x, w in zip(values, weights, strict=True)]

    def affine(self, values: Arrays, factor: Array, term: Array | None = None) -> Arrays:
        return [factor * value + (0.0 if term is None else term) for value in values]

    def normalize(self, squares: Arrays, values: Arrays, epsilon: float) -> Arrays:
        return [x * lax.rsqrt(s + epsilon) for s, x in zip(squares, values, strict=True)]

    def norms(self, values: Arrays) -> Array:
        return jnp.stack([jnp.sqrt((x * x).sum()) for x in values]) if values else jnp.zeros(0)

    def clip(self, value: Array, least: float, largest: float) -> Array:
        bounded = jnp.maximum(value, least)
        return jnp.where(jnp.asarray(largest) > 0, jnp.minimum(bounded, largest), bounded)

    def scale_layers(self, values: Arrays, places: list[int], factors: Array, rest: float | None = None) -> Arrays:
        each = {place: factors[row] for row, place in enumerate(places)}
        return [value * each.get(place, 1.0 if rest is None else rest) for place, value in enumerate(values)]

    def move(self, weights: Arrays, direction: Arrays, rate: float) -> Arrays:
        return [-rate * d for d in direction]

    def move_by_ratios(self, weights: Arrays, values: Arrays, scale: Arrays, rate: float, decay: float = 0.0) -> Arrays:
        ratios = self.divide(values, scale)
        return [-rate * (d + decay * w if w.ndim > 1 else d) for d, w in zip(ratios, weights, strict=True)]

    def move_rows(self, table: Array, rows: Rows, rate: float) -> Any:
        return Rows(rows.ids, -rate * rows.values)

    def merge_rows(self, rows: Rows) -> Rows:
        return merge_rows(rows)

    def accumulate_rows(self, total: Array, rows: Rows) -> Array:
        return total.at[rows.ids].add(rows.values)

    def accumulate_squared_rows(self, total: Array, rows: Rows) -> tuple[Array, Array]:
        total = total.at[rows.ids].add(rows.values**2)
        return total, total[rows.ids]


OPS = JaxOps()
