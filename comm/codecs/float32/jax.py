"""The codec in jax."""

import jax
import jax.numpy as jnp
from jax import Array


def encode(values: Array) -> Array:
    """(n,) floating-point values to their uint8 payload."""
    return jax.lax.bitcast_convert_type(values, jnp.uint8).reshape(-1)


def decode(payload: Array, like: Array) -> Array:
    """The payload of an array of `like`'s type and length, back to values."""
    return jax.lax.bitcast_convert_type(payload.reshape(*like.shape, like.dtype.itemsize), like.dtype)
