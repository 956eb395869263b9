"""All-gather of whole encoded arrays; every rank decodes them and sums in rank order.

Values are encoded once, whatever the number of ranks; the bytes grow with it.
"""

from suite.comm.contract import Channel, Encoder, Handle, Transport, Value
from suite.comm.transport import Entry, make_entry

SUMMARY = "all-gather of the encoded arrays, sum in rank order"
CITATION = "Xu et al. 2021, arXiv:2103.00543 (GRACE), section 4"
CLOSED = False  # only for codecs that are closed under addition


def mean(name: str, values: Value, *, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle]) -> Value:
    """Return the mean over ranks of a flat (n,) array."""
    received = [transport.all_gather(name, payload) for payload in encoder.encode("worker", values[None])]
    return transport.averaged(encoder.total(received, values))


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """Return what `mean` sends."""
    return [make_entry("all_gather", name, "", payload, world, level) for payload in channel.payloads(count, itemsize)]
