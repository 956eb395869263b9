"""Two equal levels, in torch."""

from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.coder.torch import Coders, chunks
from suite.comm.exchange.torch import gathered, scattered
from suite.comm.transport.torch import Transport


def mean(name: str, values: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    inner, outer, count = transport.inner, transport.outer, len(values)
    local, across = coders(f"{name}/inner", channel.inner, whole=True), coders(f"{name}/outer", channel.codec)
    rows = chunks(values, inner.world)
    mine = scattered(f"{name}/inner", rows, local, inner).div_(inner.world)
    mine = channel.algorithm.mean(f"{name}/outer", mine, coder=across, transport=outer)
    return gathered(f"{name}/inner", mine, local, inner).reshape(-1)[:count]


def to_owners(name: str, rows: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """Row r of the mean over ranks of (world, k), on rank r: first summed in the host, for owners of the same place."""
    inner, outer = transport.inner, transport.outer
    by_local = rows.reshape(outer.world, inner.world, -1).transpose(0, 1).reshape(inner.world, -1)
    mine = scattered(f"{name}/inner", by_local, coders(f"{name}/inner", channel.inner, whole=True), inner)
    across = coders(f"{name}/outer", channel.codec)
    return scattered(f"{name}/outer", mine.reshape(outer.world, -1), across, outer).div_(transport.world)


def gather(name: str, mine: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """Every rank's (k,) values, (world, k): from the other hosts first, then shared out in the host."""
    inner, outer = transport.inner, transport.outer
    hosts = gathered(f"{name}/outer", mine, coders(f"{name}/outer", channel.codec), outer)
    local = coders(f"{name}/inner", channel.inner, whole=True)
    ranks = gathered(f"{name}/inner", hosts.reshape(-1), local, inner)
    return ranks.reshape(inner.world, outer.world, -1).transpose(0, 1).reshape(transport.world, -1)
