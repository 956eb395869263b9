"""A wrong byte in jax."""

import copy
from typing import Any

import jax.numpy as jnp
from jax import Array

from mylab.flips import PHASE, RANK, STEP
from suite.comm.algorithms import all_to_all
from suite.comm.transport.jax import Transport


class Faulty(Transport):
    """A transport whose exchange in one phase changes a bit of what this rank receives, where `hit` is true."""

    hit: Array

    def _swapped(self, value: Array) -> Array:
        return self._flipped(super()._swapped(value), "scatter")

    def all_gather(self, name: str, value: Array) -> Array:
        return self._flipped(super().all_gather(name, value), "gather")

    def _flipped(self, received: Array, phase: str) -> Array:
        if phase != PHASE:
            return received
        bit = 64 << 8 * (received.dtype.itemsize - 1)  # a payload may be of words: of the last byte, which tells
        return received.at[0, 1].set(received[0, 1] ^ jnp.where(self.hit, bit, 0).astype(received.dtype))


def mean(name: str, values: Array, *, encoder: Any, transport: Any) -> Array:
    """Return the mean over ranks of a flat (n,) array."""
    faulty = copy.copy(transport)
    faulty.__class__ = Faulty
    faulty.hit = (encoder.key[1] == max(STEP, 0)) & (transport.rank == RANK) & (STEP >= 0)
    return all_to_all.mean(name, values, encoder=encoder, transport=faulty)
