"""Packing in jax: in one loop where bytes hold whole words, where XLA would have one for each column of a stack."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs import _bits


def pack_bits(words: Array, bits: int) -> Array:
    """`_bits.pack_bits`."""
    if 8 % bits:
        return _bits.pack_bits(jnp, words, bits)
    columns = words.reshape(-1, 8 // bits) << jnp.arange(0, 8, bits, dtype=jnp.uint8)
    return lax.reduce(columns, jnp.uint8(0), lax.bitwise_or, (1,))


def unpack_bits(packed: Array, bits: int) -> Array:
    """`_bits.unpack_bits`."""
    if 8 % bits:
        return _bits.unpack_bits(jnp, packed, bits)
    return ((packed[:, None] >> jnp.arange(0, 8, bits, dtype=jnp.uint8)) & (2**bits - 1)).reshape(-1)
