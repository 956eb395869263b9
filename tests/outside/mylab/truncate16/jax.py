import jax.numpy as jnp
from jax import lax

from mylab import truncate16


class Truncate16(truncate16.Truncate16):
    def encode(self, values, draw=None):
        words = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32) >> 16
        return lax.bitcast_convert_type(words.astype(jnp.uint16), jnp.uint8).reshape(-1)

    def decode(self, payload, like):
        words = lax.bitcast_convert_type(payload.reshape(-1, 2), jnp.uint16).astype(jnp.uint32) << 16
        return lax.bitcast_convert_type(words, jnp.float32).astype(like.dtype)


make = Truncate16
