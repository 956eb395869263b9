"""Codec in jax; the payload of 16-bit words is uint16."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import minifloat
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._fold import fold_values


class MiniFloat(minifloat.MiniFloat):
    """minifloat in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        values = values.astype(jnp.float32)
        power = jnp.zeros((), jnp.int32)
        if self.header:
            nonempty = values if values.size else jnp.zeros(1, jnp.float32)
            largest = fold_values(jnp, nonempty, jnp.maximum, lambda part: self.finite(jnp, part.view(jnp.int32)))
            power = self.power(jnp, largest)
        kind = jnp.dtype(f"uint{8 * self.width}")
        words = self.words(jnp, values.view(jnp.int32), power).astype(kind)
        scale = lax.bitcast_convert_type((power + 127) << 23, kind)
        return jnp.concatenate([scale, words]) if self.header else words

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        head = self.header // self.width
        scale = lax.bitcast_convert_type(payload[:head], jnp.float32) if head else 1.0
        return self.values(jnp, payload[head:].astype(jnp.int32), scale).astype(like.dtype)


make = MiniFloat
