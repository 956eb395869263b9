"""A ring that decodes, adds and encodes again at every hop, as a user-defined operation of MPI's all-reduce does.

Rank r starts with chunk r; after W - 1 hops it holds the sum of chunk r + 1, which is then gathered encoded. The error
grows with the number of hops, which is why this algorithm is here: it is what low-precision reductions over MPI did.
"""

from suite.comm.channel import Channel
from suite.comm.transport import Entry, entry

SUMMARY = "ring that decodes, adds and encodes at every hop"
CITATION = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
CLOSED = False  # only for codecs that are closed under addition


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """What `mean` sends."""
    payloads = channel.payloads(-(-count // world), itemsize)
    hops = [
        entry("shift", f"{name}/hop{hop}", "", payload, world, level)
        for hop in range(world - 1)
        for payload in payloads
    ]
    return hops + [entry("all_gather", f"{name}/gather", "", payload, world, level) for payload in payloads]
