"""All ranks alike, in jax."""

from jax import Array

from suite.comm.channel import Channel
from suite.comm.coder.jax import Coders
from suite.comm.topologies._owners.jax import gather, to_owners
from suite.comm.transport.jax import Transport

__all__ = ["gather", "mean", "to_owners"]


def mean(name: str, values: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    return channel.algorithm.mean(name, values, coder=coders(name, channel.codec), transport=transport)
