"""Every rank sends its whole encoded array to all, and adds up what it has decoded, in rank order.

Values are encoded once, whatever the number of ranks; the bytes grow with it.
"""

from suite.comm.channel import Channel
from suite.comm.transport import Entry, entry

SUMMARY = "all-gather of the encoded arrays, sum in rank order"
CITATION = "Xu et al. 2021, arXiv:2103.00543 (GRACE), section 4"
CLOSED = False  # only for codecs that are closed under addition


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """What `mean` sends."""
    return [entry("all_gather", name, "", payload, world, level) for payload in channel.payloads(count, itemsize)]
