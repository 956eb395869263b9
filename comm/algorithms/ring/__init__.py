"""A ring that decodes, adds and encodes at every hop, like MPI's all-reduce with a user-defined operation.

Rank r starts with chunk r; after W - 1 hops it holds the sum of chunk r + 1, which is then gathered encoded. The error
grows with the number of hops, which is why this algorithm is here: it is what low-precision reductions over MPI did.
"""

from suite.comm.contract import Channel, Encoder, Handle, Transport, Value
from suite.comm.exchange import gather_rows
from suite.comm.transport import Entry, make_entry

SUMMARY = "ring that decodes, adds and encodes at every hop"
CITATION = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
CLOSED = False  # only for codecs that are closed under addition


def mean(name: str, values: Value, *, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle]) -> Value:
    """Return the mean over ranks of a flat (n,) array."""
    rows = transport.chunks(values)
    partial = transport.row(rows)
    for hop in range(transport.world - 1):
        payloads = encoder.encode(f"hop{hop}", partial[None])
        received = [transport.shift(f"{name}/hop{hop}", payload) for payload in payloads]
        partial = encoder.decode(received, partial)[0] + transport.row(rows, behind=hop + 1)
    parts = gather_rows(f"{name}/gather", transport.averaged(partial), encoder, transport, "server")
    means = transport.xp.roll(parts, 1, 0)  # rank r holds chunk r + 1
    return means.reshape(-1)[: values.shape[0]]


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """Return what `mean` sends."""
    payloads = channel.payloads(-(-count // world), itemsize)
    hops = [
        make_entry("shift", f"{name}/hop{hop}", "", payload, world, level)
        for hop in range(world - 1)
        for payload in payloads
    ]
    return hops + [make_entry("all_gather", f"{name}/gather", "", payload, world, level) for payload in payloads]
