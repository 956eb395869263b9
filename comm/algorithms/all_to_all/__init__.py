"""Reduce-scatter by all-to-all of encoded chunks, summed in rank order, then all-gather of the encoded means.

Values are encoded twice whatever the number of ranks, where a ring would encode at every hop. Every rank decodes the
same bytes, so all ranks hold the same bits afterwards.
"""

from suite.comm.contract import Channel, Encoder, Handle, Transport, Value
from suite.comm.exchange import gather_rows, scatter_rows
from suite.comm.transport import Entry, make_entry

SUMMARY = "all-to-all of encoded chunks, sum in rank order, all-gather of the means"
CITATION = "Seide et al. 2014, doi:10.21437/Interspeech.2014-274, section 4"
CLOSED = False  # only for codecs that are closed under addition


def mean(name: str, values: Value, *, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle]) -> Value:
    """Return the mean over ranks of a flat (n,) array."""
    total = scatter_rows(f"{name}/scatter", transport.chunks(values), encoder, transport, "worker")
    means = gather_rows(f"{name}/gather", transport.averaged(total), encoder, transport, "server")
    return means.reshape(-1)[: values.shape[0]]


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """Return what `mean` sends."""
    payloads = channel.payloads(-(-count // world), itemsize)
    scatter = [make_entry("all_to_all", f"{name}/scatter", "", world * payload, world, level) for payload in payloads]
    return scatter + [make_entry("all_gather", f"{name}/gather", "", payload, world, level) for payload in payloads]
