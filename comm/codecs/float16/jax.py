"""Codec in jax."""

import jax.numpy as jnp

from suite.comm.codecs import float16
from suite.comm.codecs._half.jax import Half


class Float16(Half, float16.Float16):
    """float16 in jax."""

    kind = jnp.float16


make = Float16
