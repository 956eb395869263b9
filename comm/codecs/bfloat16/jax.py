"""Codec in jax."""

import jax.numpy as jnp

from suite.comm.codecs import bfloat16
from suite.comm.codecs._half.jax import Half


class BFloat16(Half, bfloat16.BFloat16):
    """bfloat16 in jax."""

    kind = jnp.bfloat16


make = BFloat16
