"""Encoding of named arrays with error feedback, in jax."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite import stream
from suite.comm.codecs._codec import Codec
from suite.comm.layout import cut_pieces

UNROLLED = 16  # sums over more rows are a loop in the program


class Encoder:
    """Encodes rows of values under one name; see `suite.comm.encoder.torch.Encoder`.

    Residuals have a leading axis of length 1, for this rank.
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
        """(r, k) values to payloads (r, nbytes), each row by itself: one payload for each piece of the length k."""
        name = f"{self.name}/{slot}"
        if self.state is not None:
            rows = rows + (self.state[name][0] if name in self.state else jnp.zeros_like(rows))
        if self.codec.draws:
            index = jnp.arange(rows.size, dtype=jnp.uint32).reshape(rows.shape)
            index = index + jnp.asarray(self.rank, jnp.uint32) * jnp.uint32(rows.size)
            draws = stream.uniform(jnp, self.key, name, index)
        else:
            draws = rows  # the codec does not use them
        encode = jax.vmap(lambda row, drawn: self.codec.encode(row, lambda count: drawn))
        payloads = [encode(part, drawn) for part, drawn in zip(self._cut(rows), self._cut(draws), strict=True)]
        if self.state is not None:
            lost = rows - self.decode(payloads, rows[0])
            self.state[name] = jnp.nan_to_num(lost, nan=0.0, posinf=0.0, neginf=0.0)[None]
        return payloads

    def decode(self, payloads: Iterable[Array], like: Array) -> Array:
        """Decode the payloads (r, nbytes) of all pieces to (r, k) values; `like` is one row (k,)."""
        parts = zip(payloads, self._cut(like), strict=True)
        return jnp.concatenate([self._decode(payload, part) for payload, part in parts], 1)

    def total(self, payloads: Iterable[Array], like: Array) -> Array:
        """Return the sum of the r rows, in order, that `decode` would return; (k,)."""
        parts = zip(payloads, self._cut(like), strict=True)
        return jnp.concatenate([self._total(payload, part) for payload, part in parts])

    def _cut(self, rows: Array) -> list[Array]:
        """Pieces of (…, k) values."""
        ends = itertools.accumulate(cut_pieces(self.codec, rows.shape[-1], rows.dtype.itemsize, self.piece_bytes))
        return jnp.split(rows, list(ends)[:-1], -1)

    def _decode(self, payloads: Array, like: Array) -> Array:
        return jax.vmap(lambda payload: self.codec.decode(payload, like))(payloads)

    def _total(self, payloads: Array, like: Array) -> Array:
        """Add the rows one by one: XLA on CPUs sums over a short leading axis a thousand times slower."""
        total = self.codec.decode(payloads[0], like)
        if len(payloads) <= UNROLLED:
            for payload in payloads[1:]:
                total = total + self.codec.decode(payload, like)
            return total
        return lax.scan(lambda sums, payload: (sums + self.codec.decode(payload, like), None), total, payloads[1:])[0]
