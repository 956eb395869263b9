"""The codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import float16
from suite.comm.codecs._codec import Draw


class Float16(float16.Float16):
    """float16 in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        return lax.bitcast_convert_type(self.narrow(values), jnp.uint8).reshape(-1)

    def decode(self, payload: Array, like: Array) -> Array:
        """The payload back to values."""
        return lax.bitcast_convert_type(payload.reshape(*like.shape, 2), jnp.float16).astype(like.dtype)

    def narrow(self, values: Array) -> Array:
        """By way of float32, as every codec takes wider values."""
        return values.astype(jnp.float32).astype(jnp.float16)


make = Float16
