"""Codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import onebit
from suite.comm.codecs._bits import jax as in_bytes
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._fold import fold_values


class OneBit(onebit.OneBit):
    """onebit in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        narrow = values.astype(jnp.float32) if values.size else jnp.zeros(1, jnp.float32)
        words = jnp.pad((narrow.view(jnp.int32) < 0).astype(jnp.uint8), (0, -narrow.size % 8))
        negatives = fold_values(jnp, narrow, jnp.add, lambda part: (part.view(jnp.int32) < 0).astype(jnp.int32))
        means = self.means(jnp, *self.sums(jnp, narrow), values.size, negatives)
        means = lax.bitcast_convert_type(means, jnp.uint8).reshape(-1)
        return jnp.concatenate([means, in_bytes.pack_bits(words, 1)])[: self.nbytes(values.size)]

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        means = lax.bitcast_convert_type(payload[:8].reshape(2, 4), jnp.float32)
        words = in_bytes.unpack_bits(payload[8:], 1)[: like.size]
        return jnp.where(words == 1, means[1], means[0]).astype(like.dtype)


make = OneBit
