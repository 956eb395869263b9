"""A leader on each host: its first rank adds up what its ranks hold, talks to the other leaders, and tells.

Less goes on inside a host's memory than with two equal levels, but only one rank of a host uses the network. What the
optimizers' owners exchange does not go by leaders: rows have owners on every rank.
"""

from suite.comm.channel import Channel
from suite.comm.topologies._owners import gather_traffic, to_owners_traffic
from suite.comm.transport import Entry, entry

__all__ = ["gather_traffic", "to_owners_traffic", "traffic"]

SUMMARY = "to the first rank of each host, the algorithm between these, and back"
CITATION = "Goyal et al. 2017, arXiv:1706.02677, section 4"
LEVELS = 2


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """What `mean` sends, on rank 0, a leader."""
    payload, how = channel.inner.nbytes(count, itemsize), {"channel": channel, "itemsize": itemsize}
    return [
        entry("to_first", f"{name}/inner", "", payload, locals, "inner"),
        *channel.algorithm.traffic(f"{name}/outer", count, **how, world=world // locals, level="outer"),
        entry("broadcast", f"{name}/inner", "", payload, locals, "inner"),
    ]
