"""Encoding with a memory, in jax."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite import stream
from suite.comm.codecs._codec import Codec
from suite.comm.layout import pieces

UNROLLED = 16  # sums over more rows are a loop


class Coder:
    """Encodes rows of values under one name, in pieces of their length; the twin of `suite.comm.coder.torch.Coder`.

    Residuals have a leading axis of length 1: this rank's own.
    """

    def __init__(
        self,
        name: str,
        codec: Codec,
        state: dict[str, Array] | None,
        key: Any,
        rank: Array,
        piece_bytes: float = float("inf"),
    ):
        self.name, self.codec, self.state, self.key, self.rank = name, codec, state, key, rank
        self.piece_bytes = piece_bytes

    def encode(self, slot: str, rows: Array) -> list[Array]:
        """(r, k) values to payloads (r, nbytes), each row by itself: one for each piece of the length k."""
        name = f"{self.name}/{slot}"
        if self.state is not None:
            rows = rows + (self.state[name][0] if name in self.state else jnp.zeros_like(rows))
        if self.codec.draws:
            index = jnp.arange(rows.size, dtype=jnp.uint32).reshape(rows.shape)
            index = index + jnp.asarray(self.rank, jnp.uint32) * jnp.uint32(rows.size)
            draws = stream.uniform(jnp, self.key, name, index)
        else:
            draws = rows  # no codec looks at them then
        encode = jax.vmap(lambda row, drawn: self.codec.encode(row, lambda count: drawn))
        payloads = [encode(*both) for both in zip(self._cut(rows), self._cut(draws), strict=True)]
        if self.state is not None:
            self.state[name] = (rows - self.decode(payloads, rows[0]))[None]
        return payloads

    def decode(self, payloads: Sequence[Array], like: Array) -> Array:
        """The payloads (r, nbytes) of all pieces back to (r, k) values; `like` is one row."""
        return jnp.concatenate([self._decode(*each) for each in zip(payloads, self._cut(like), strict=True)], 1)

    def total(self, payloads: Sequence[Array], like: Array) -> Array:
        """The sum of the rows, in order, whose payloads (r, nbytes) these are, piece by piece; (k,)."""
        return jnp.concatenate([self._total(*each) for each in zip(payloads, self._cut(like), strict=True)])

    def _cut(self, rows: Array) -> list[Array]:
        """Pieces of (…, k) values."""
        ends = itertools.accumulate(pieces(self.codec, rows.shape[-1], rows.dtype.itemsize, self.piece_bytes))
        return jnp.split(rows, list(ends)[:-1], -1)

    def _decode(self, payloads: Array, like: Array) -> Array:
        return jax.vmap(lambda payload: self.codec.decode(payload, like))(payloads)

    def _total(self, payloads: Array, like: Array) -> Array:
        """Added one by one: XLA on CPUs sums over a short leading axis a thousand times slower."""
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


class Coders(Protocol):
    """Makes coders with the run's residuals and random numbers."""

    def __call__(self, name: str, codec: Codec, whole: bool = False) -> Coder:
        """The coder of a name and a codec; `whole`: not in pieces, as inside a host."""
        ...
