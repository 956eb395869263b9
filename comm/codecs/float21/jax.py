"""The codec in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import float21
from suite.comm.codecs._codec import Draw


class Float21(float21.Float21):
    """float21 in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        bits = lax.bitcast_convert_type(jnp.pad(values.astype(jnp.float32), (0, -values.size % 3)), jnp.uint32)
        packed = jnp.concatenate(float21.pack(jnp, *jnp.split(float21.words(jnp, bits), 3)))
        return lax.bitcast_convert_type(packed, jnp.uint8).reshape(-1)

    def decode(self, payload: Array, like: Array) -> Array:
        """The payload back to values."""
        packed = lax.bitcast_convert_type(payload.reshape(-1, 4), jnp.uint32)
        bits = jnp.concatenate(float21.unpack(jnp, *jnp.split(packed, 2)))[: like.size]
        return lax.bitcast_convert_type(bits, jnp.float32).astype(like.dtype)


make = Float21
