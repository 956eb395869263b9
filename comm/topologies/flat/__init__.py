"""Every rank talks to every other; hosts are not told apart."""

from suite.comm.channel import Channel
from suite.comm.topologies._owners import gather_traffic, to_owners_traffic
from suite.comm.transport import Entry

__all__ = ["gather_traffic", "to_owners_traffic", "traffic"]

SUMMARY = "all ranks alike"
CITATION = ""
LEVELS = 1


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """What `mean` sends, on rank 0."""
    return channel.algorithm.traffic(name, count, channel=channel, itemsize=itemsize, world=world, level="flat")
