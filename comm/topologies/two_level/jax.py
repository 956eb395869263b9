"""Two equal levels, in jax."""

from jax import Array

from suite.comm.channel import Channel
from suite.comm.coder.jax import Coders, chunks
from suite.comm.exchange.jax import divided, gathered, scattered
from suite.comm.transport.jax import Transport


def mean(name: str, values: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    inner, outer, count = transport.inner, transport.outer, values.size
    local, across = coders(f"{name}/inner", channel.inner, whole=True), coders(f"{name}/outer", channel.codec)
    rows = chunks(values, inner.world)
    mine = divided(scattered(f"{name}/inner", rows, local, inner), inner.world)
    mine = channel.algorithm.mean(f"{name}/outer", mine, coder=across, transport=outer)
    return gathered(f"{name}/inner", mine, local, inner).reshape(-1)[:count]


def to_owners(name: str, rows: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """Row r of the mean over ranks of (world, k), on rank r: first summed in the host, for owners of the same place."""
    inner, outer = transport.inner, transport.outer
    by_local = rows.reshape(outer.world, inner.world, -1).swapaxes(0, 1).reshape(inner.world, -1)
    mine = scattered(f"{name}/inner", by_local, coders(f"{name}/inner", channel.inner, whole=True), inner)
    across = coders(f"{name}/outer", channel.codec)
    return divided(scattered(f"{name}/outer", mine.reshape(outer.world, -1), across, outer), transport.world)


def gather(name: str, mine: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """Every rank's (k,) values, (world, k): from the other hosts first, then shared out in the host."""
    inner, outer = transport.inner, transport.outer
    hosts = gathered(f"{name}/outer", mine, coders(f"{name}/outer", channel.codec), outer)
    local = coders(f"{name}/inner", channel.inner, whole=True)
    ranks = gathered(f"{name}/inner", hosts.reshape(-1), local, inner)
    return ranks.reshape(inner.world, outer.world, -1).swapaxes(0, 1).reshape(transport.world, -1)
