"""The network's own all-reduce, in the type that the codec narrows to; only for codecs that are closed under addition.

In which order the network adds is its own affair. The sum is taken before the division, so float16 may overflow.
"""

from suite.comm.channel import Channel
from suite.comm.transport import Entry, entry

SUMMARY = "the network's own all-reduce"
CITATION = ""
CLOSED = True  # only for codecs that are closed under addition


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """What `mean` sends: all in one, which the network cuts as it likes."""
    return [entry("all_reduce", name, "", channel.codec.nbytes(count, itemsize), world, level)]
