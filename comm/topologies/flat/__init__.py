"""Every rank exchanges with every other, whatever its host."""

from suite.comm.contract import Channel, Encoders, Handle, Transport, Value
from suite.comm.topologies._owners import gather, gather_traffic, to_owners, to_owners_traffic
from suite.comm.transport import Entry

__all__ = ["gather", "gather_traffic", "mean", "to_owners", "to_owners_traffic", "traffic"]

SUMMARY = "every rank exchanges with every other"
CITATION = ""
LEVELS = 1


def mean(
    name: str,
    values: Value,
    *,
    channel: Channel,
    encoders: Encoders[Value, Handle],
    transport: Transport[Value, Handle],
) -> Value:
    """Return the mean over ranks of a flat (n,) array."""
    return channel.algorithm.mean(name, values, encoder=encoders(name, channel.codec), transport=transport)


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """Return what `mean` sends, on rank 0."""
    return channel.algorithm.traffic(name, count, channel=channel, itemsize=itemsize, world=world, level="flat")
