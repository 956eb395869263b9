"""Exchanges between owners of rows, in jax."""

from jax import Array

from suite.comm.channel import Channel
from suite.comm.coder.jax import Coders
from suite.comm.exchange.jax import divided, gathered, scattered
from suite.comm.transport.jax import Transport


def to_owners(name: str, rows: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """Row r of the mean over ranks of (world, k), on rank r; all ranks alike."""
    return divided(scattered(name, rows, coders(name, channel.codec), transport), transport.world)


def gather(name: str, mine: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """Every rank's (k,) values, (world, k); all ranks alike."""
    return gathered(name, mine, coders(name, channel.codec), transport)
