"""The codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import minifloat
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._fold import fold


class MiniFloat(minifloat.MiniFloat):
    """minifloat in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        values = values.astype(jnp.float32)
        power = jnp.zeros((), jnp.int32)
        if self.header:
            given = values if values.size else jnp.zeros(1, jnp.float32)
            largest = fold(jnp, given, jnp.maximum, lambda part: self.finite(jnp, part.view(jnp.int32)))
            power = self.power(jnp, largest)
        scale = lax.bitcast_convert_type((power + 127) << 23, jnp.uint8)
        words = self.words(jnp, values.view(jnp.int32), power).astype(jnp.uint8 if self.width == 1 else jnp.uint16)
        return jnp.concatenate([scale[: self.header], lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)])

    def decode(self, payload: Array, like: Array) -> Array:
        """The payload back to values."""
        scale = lax.bitcast_convert_type(payload[: self.header], jnp.float32) if self.header else 1.0
        words = payload[self.header :]
        if self.width == 2:
            words = lax.bitcast_convert_type(words.reshape(-1, 2), jnp.uint16)
        return self.values(jnp, words.astype(jnp.int32), scale).astype(like.dtype)


make = MiniFloat
