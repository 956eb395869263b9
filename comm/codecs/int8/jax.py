"""Codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import int8
from suite.comm.codecs._codec import Draw


class Int8(int8.Int8):
    """int8 in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        rows = self._rows(values.astype(jnp.float32))
        # XLA's largest value of many may forget a NaN; it has no other use for one than for an infinity
        scales = self.scales(jnp, jnp.where(jnp.isnan(rows), jnp.inf, rows))
        numbers = self.numbers(jnp, rows, scales, self._rows(draw(values.size)) if self.draws and draw else None)
        numbers = lax.bitcast_convert_type(numbers.astype(jnp.int8).reshape(-1)[: values.size], jnp.uint8)
        return jnp.concatenate([lax.bitcast_convert_type(scales, jnp.uint8).reshape(-1), numbers])

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        head = 4 * self.blocks(like.size)
        scales = lax.bitcast_convert_type(payload[:head].reshape(-1, 4), jnp.float32)
        rows = self._rows(lax.bitcast_convert_type(payload[head:], jnp.int8)).astype(jnp.float32)
        return (rows * scales[:, None]).reshape(-1)[: like.size].astype(like.dtype)

    def _rows(self, values: Array) -> Array:
        return jnp.pad(values, (0, -values.size % self.block)).reshape(-1, self.block)


make = Int8
