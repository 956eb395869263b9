"""A ring that decodes, adds and encodes again at every hop, as a user-defined operation of MPI's all-reduce does.

Rank r starts with chunk r; after W - 1 hops it holds the sum of chunk r + 1, which is then gathered encoded. The error
grows with the number of hops, which is why this algorithm is here: it is what low-precision reductions over MPI did.
"""

from collections.abc import Callable

from suite.comm.transport import Entry, entry

SUMMARY = "ring that decodes, adds and encodes at every hop"
CITATION = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
CLOSED = False  # only for codecs that are closed under addition


def traffic(name: str, count: int, *, nbytes: Callable[[int], int], world: int, level: str) -> list[Entry]:
    """What `mean` sends; `nbytes` is the codec's."""
    chunk = nbytes(-(-count // world))
    hops = [entry("shift", f"{name}/hop", "", chunk, world, level)] * (world - 1)
    return [*hops, entry("all_gather", f"{name}/gather", "", chunk, world, level)]
