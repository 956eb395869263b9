"""A wrong byte in jax."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from mylab.flips import RANK, STEP
from suite.comm.algorithms.all_to_all import jax as true


class Faulty:
    """A transport whose all-gather changes a bit of what this rank receives, where `hit` is true."""

    def __init__(self, transport: Any, hit: Array):
        self.transport, self.hit = transport, hit

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def all_gather(self, name: str, value: Array) -> Array:
        received = self.transport.all_gather(name, value)
        bit = 64 << 8 * (received.dtype.itemsize - 1)  # a payload may be of words: of the last byte, which tells
        return received.at[0, 1].set(received[0, 1] ^ jnp.where(self.hit, bit, 0).astype(received.dtype))


def mean(name: str, values: Array, *, coder: Any, transport: Any) -> Array:
    """The mean over ranks of a flat (n,) array."""
    hit = (coder.key[1] == max(STEP, 0)) & (transport.rank == RANK) & (STEP >= 0)
    return true.mean(name, values, coder=coder, transport=Faulty(transport, hit))
