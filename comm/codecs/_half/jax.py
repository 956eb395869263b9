"""16-bit types in jax; the payload is uint16."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import _half
from suite.comm.codecs._codec import Draw


class Half(_half.Half):
    """Codec in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        return lax.bitcast_convert_type(self.narrow(values), jnp.uint16)

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        return lax.bitcast_convert_type(payload, self.kind).astype(like.dtype)

    def narrow(self, values: Array) -> Array:
        """By way of float32, as every codec takes wider values."""
        return values.astype(jnp.float32).astype(self.kind)
