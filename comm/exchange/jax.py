"""Exchanges of encoded rows in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.coder.jax import Coder
from suite.comm.transport.jax import Transport


def scattered(name: str, rows: Array, coder: Coder, transport: Transport, slot: str = "owners") -> Array:
    """Row r of the sum over ranks of (world, k), on rank r; `slot` is the coder's."""
    return coder.total([transport.all_to_all(name, payload) for payload in coder.encode(slot, rows)], rows[0])


def gathered(name: str, mine: Array, coder: Coder, transport: Transport, slot: str = "gather") -> Array:
    """Every rank's (k,) values as all decode them, (world, k)."""
    return coder.decode([transport.all_gather(name, payload) for payload in coder.encode(slot, mine[None])], mine)


def divided(values: Array, count: int) -> Array:
    """The values divided by a number of ranks, to the last bit.

    XLA multiplies by a constant's reciprocal, which is something else where the constant is no power of two; and a
    number in each place is no constant. Simulated ranks (`jax_sim`) share these numbers, and XLA sees it there.
    """
    exact = count & (count - 1) == 0
    return values / (count if exact else lax.optimization_barrier(jnp.full_like(values, count)))
