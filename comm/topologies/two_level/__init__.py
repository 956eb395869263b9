"""Two levels: what a host's ranks hold is summed there first, and each rank takes one part of it to the other hosts.

Reduce-scatter inside the host, the channel's algorithm between hosts on 1/L of the values, all-gather inside: between
hosts each of L ranks moves an L-th of what it would move if hosts were not told apart. The levels may have codecs of
their own.
"""

from suite.comm.channel import Channel
from suite.comm.transport import Entry, entry

SUMMARY = "reduce-scatter in the host, the algorithm between hosts, all-gather in the host"
CITATION = "Mikami et al. 2018, arXiv:1811.05233; Jia et al. 2018, arXiv:1807.11205"
LEVELS = 2


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """What `mean` sends, on rank 0."""
    part, how = -(-count // locals), {"channel": channel, "itemsize": itemsize}
    inside = channel.inner.nbytes(part, itemsize)
    return [
        entry("all_to_all", f"{name}/inner", "", locals * inside, locals, "inner"),
        *channel.algorithm.traffic(f"{name}/outer", part, **how, world=world // locals, level="outer"),
        entry("all_gather", f"{name}/inner", "", inside, locals, "inner"),
    ]


def to_owners_traffic(
    name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
) -> list[Entry]:
    """What `to_owners` sends of (world, count) values."""
    hosts = world // locals
    inside, across = channel.inner.nbytes(hosts * count, itemsize), channel.payloads(count, itemsize)
    return [
        entry("all_to_all", f"{name}/inner", "", locals * inside, locals, "inner"),
        *(entry("all_to_all", f"{name}/outer", "", hosts * payload, hosts, "outer") for payload in across),
    ]


def gather_traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """What `gather` sends of a rank's (count,) values."""
    hosts = world // locals
    inside, across = channel.inner.nbytes(hosts * count, itemsize), channel.payloads(count, itemsize)
    return [
        *(entry("all_gather", f"{name}/outer", "", payload, hosts, "outer") for payload in across),
        entry("all_gather", f"{name}/inner", "", inside, locals, "inner"),
    ]
