"""Codec in jax; the payload is uint32 or uint64."""

from jax import Array, lax

from suite.comm.codecs import float32
from suite.comm.codecs._codec import Draw


class Float32(float32.Float32):
    """float32 in jax."""

    def encode(self, values: Array, draw: Draw | None = None) -> Array:
        """(n,) values to their payload."""
        return lax.bitcast_convert_type(values, f"uint{8 * values.dtype.itemsize}")

    def decode(self, payload: Array, like: Array) -> Array:
        """Decode the payload to values."""
        return lax.bitcast_convert_type(payload, like.dtype)


make = Float32
