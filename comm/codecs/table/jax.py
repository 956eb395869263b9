"""The codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import _bits, table
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._fold import fold


class Table(table.Table):
    """table in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        narrow = values.astype(jnp.float32) if values.size else jnp.zeros(1, jnp.float32)
        bits = narrow.view(jnp.int32)
        largest = fold(jnp, narrow, jnp.maximum, lambda part: part.view(jnp.int32) & table.MAGNITUDE)
        looked = narrow[:: self.stride(narrow.size)].view(jnp.int32) & table.MAGNITUDE
        made = self.table(jnp, largest, jnp.sort(looked))
        middles, magnitudes = self.middles(jnp, made), bits & table.MAGNITUDE
        numbers = jnp.zeros(bits.shape, jnp.int32)  # how many middles are below, one by one: a search would gather
        for middle in range(middles.size):
            numbers = numbers + (magnitudes > middles[middle])
        words = jnp.pad(self.words(bits, numbers).astype(jnp.uint8), (0, -bits.size % _bits.group(self.bits)))
        packed = _bits.pack(jnp, words, self.bits)
        made = lax.bitcast_convert_type(made, jnp.uint8).reshape(-1)
        return jnp.concatenate([made, packed])[: self.nbytes(values.size)]

    def decode(self, payload: Array, like: Array) -> Array:
        """The payload back to values."""
        made = lax.bitcast_convert_type(payload[: 4 * self.size].reshape(-1, 4), jnp.int32)
        packed, whole = payload[4 * self.size :], self.bits * _bits.group(self.bits) // 8
        words = _bits.unpack(jnp, jnp.pad(packed, (0, -packed.size % whole)), self.bits)[: like.size]
        signed = lax.bitcast_convert_type(jnp.concatenate([made, made | table.SIGN]), jnp.float32)
        return signed[words.astype(jnp.int32)].astype(like.dtype)


make = Table
