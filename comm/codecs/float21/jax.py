"""Codec in jax; the payload is its words, uint32."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import float21
from suite.comm.codecs._codec import Draw


class Float21(float21.Float21):
    """float21 in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        thirds = jnp.split(jnp.pad(values.astype(jnp.float32), (0, -values.size % 3)), 3)
        words = [float21.round_bits(jnp, lax.bitcast_convert_type(third, jnp.uint32)) for third in thirds]
        return jnp.concatenate(float21.pack_thirds(jnp, *words))

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        a, b, c = float21.unpack_thirds(jnp, *jnp.split(payload, 2))
        parts = a, b[: like.size - a.size], c[: max(0, like.size - 2 * a.size)]  # cut before they are joined: faster
        return lax.bitcast_convert_type(jnp.concatenate(parts), jnp.float32).astype(like.dtype)


make = Float21
