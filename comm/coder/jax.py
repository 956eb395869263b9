"""Encoding with a memory, in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite import stream
from suite.comm.codecs._codec import Codec

UNROLLED = 16  # sums over more rows are a loop


class Coder:
    """Encodes rows of values under one name; the twin of `suite.comm.coder.torch.Coder`.

    Residuals have a leading axis of length 1: this rank's own.
    """

    def __init__(self, name: str, codec: Codec, state: dict[str, Array] | None, key: Any, rank: Array):
        self.name, self.codec, self.state, self.key, self.rank = name, codec, state, key, rank

    def encode(self, slot: str, rows: Array) -> Array:
        """(r, k) values to (r, nbytes(k)) payloads, each row by itself."""
        name = f"{self.name}/{slot}"
        if self.state is not None:
            rows = rows + (self.state[name][0] if name in self.state else jnp.zeros_like(rows))
        if self.codec.draws:
            index = jnp.arange(rows.size, dtype=jnp.uint32).reshape(rows.shape)
            index = index + jnp.asarray(self.rank, jnp.uint32) * jnp.uint32(rows.size)
            draws = stream.uniform(jnp, self.key, name, index)
            payloads = jax.vmap(lambda row, drawn: self.codec.encode(row, lambda count: drawn))(rows, draws)
        else:
            payloads = jax.vmap(self.codec.encode)(rows)
        if self.state is not None:
            self.state[name] = (rows - self.decode(payloads, rows[0]))[None]
        return payloads

    def decode(self, payloads: Array, like: Array) -> Array:
        """(r, nbytes(k)) payloads back to (r, k) values; `like` is one row."""
        return jax.vmap(lambda payload: self.codec.decode(payload, like))(payloads)

    def total(self, payloads: Array, like: Array) -> Array:
        """The sum of the payloads' values, in order; (k,).

        Added one by one: XLA on CPUs sums over a short leading axis a thousand times slower.
        """
        found = self.codec.decode(payloads[0], like)
        if len(payloads) <= UNROLLED:
            for payload in payloads[1:]:
                found = found + self.codec.decode(payload, like)
            return found
        return lax.scan(lambda total, payload: (total + self.codec.decode(payload, like), None), found, payloads[1:])[0]


def chunks(values: Array, count: int) -> Array:
    """(n,) values to (count, k): where that does not come out, the last values once more.

    Zeros would enter the means and percentiles that some codecs take.
    """
    missing = -values.size % count
    more = values[values.size - missing :] if missing <= values.size else jnp.zeros(missing, values.dtype)
    return jnp.concatenate([values, more]).reshape(count, -1)


Coders = Callable[[str, Codec], Coder]  # the coder of a name and a codec, with the run's residuals and random numbers
