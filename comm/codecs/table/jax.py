"""Codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import _bits, table
from suite.comm.codecs._bits import jax as in_bytes
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._fold import fold_values

FEW = 8  # largest table whose entries are selected one by one


class Table(table.Table):
    """table in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        narrow = values.astype(jnp.float32) if values.size else jnp.zeros(1, jnp.float32)
        bits = narrow.view(jnp.int32)
        largest = fold_values(jnp, narrow, jnp.maximum, lambda part: part.view(jnp.int32) & table.MAGNITUDE)
        sample = narrow[:: self.stride(narrow.size)].view(jnp.int32) & table.MAGNITUDE
        entries = self.table(jnp, largest, jnp.sort(sample)[jnp.asarray(self.ranks(sample.size))])
        middles, magnitudes = self.middles(jnp, entries), bits & table.MAGNITUDE
        numbers = jnp.zeros(bits.shape, jnp.int32)  # counts the middles below; a search would gather
        for middle in range(middles.size):
            numbers = numbers + (magnitudes > middles[middle])
        words = jnp.pad(self.words(bits, numbers).astype(jnp.uint8), (0, -bits.size % _bits.count_words(self.bits)))
        packed = in_bytes.pack_bits(words, self.bits)
        entries = lax.bitcast_convert_type(entries, jnp.uint8).reshape(-1)
        return jnp.concatenate([entries, packed])[: self.nbytes(values.size)]

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        entries = lax.bitcast_convert_type(payload[: 4 * self.size].reshape(-1, 4), jnp.int32)
        packed, whole = payload[4 * self.size :], self.bits * _bits.count_words(self.bits) // 8
        words = in_bytes.unpack_bits(jnp.pad(packed, (0, -packed.size % whole)), self.bits)[: like.size]
        if self.size <= FEW:  # with an indexed table, XLA would compute the table again for every value
            numbers, decoded = words & (self.size - 1), jnp.full(words.shape, entries[0])
            for number in range(1, self.size):
                decoded = jnp.where(numbers == number, entries[number], decoded)
            decoded = jnp.where(words < self.size, decoded, decoded | table.SIGN)
        else:
            decoded = jnp.concatenate([entries, entries | table.SIGN])[words.astype(jnp.int32)]
        return lax.bitcast_convert_type(decoded, jnp.float32).astype(like.dtype)


make = Table
