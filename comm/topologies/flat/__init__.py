"""Every rank talks to every other; hosts are not told apart."""

import functools

from suite.comm.channel import Channel
from suite.comm.topologies._owners import gather_traffic, to_owners_traffic
from suite.comm.transport import Entry

__all__ = ["gather_traffic", "to_owners_traffic", "traffic"]

SUMMARY = "all ranks alike"
CITATION = ""
LEVELS = 1


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """What `mean` sends, on rank 0."""
    nbytes = functools.partial(channel.codec.nbytes, itemsize=itemsize)
    return channel.algorithm.traffic(name, count, nbytes=nbytes, world=world, level="flat")
