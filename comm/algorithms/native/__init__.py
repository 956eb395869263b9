"""All-reduce of the backend, in the codec's narrow type; only for codecs that are closed under addition.

In which order the network adds is its own affair. The sum is taken before the division, so float16 may overflow.
"""

from suite.comm.contract import Channel, Encoder, Handle, Transport, Value
from suite.comm.transport import Entry, make_entry

SUMMARY = "the backend's all-reduce"
CITATION = ""
CLOSED = True  # only for codecs that are closed under addition


def mean(name: str, values: Value, *, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle]) -> Value:
    """Return the mean over ranks of a flat (n,) array; torch overwrites it, because gradients would be copied twice."""
    total = transport.all_reduce(name, encoder.codec.narrow(values))
    return transport.averaged(transport.xp.asarray(total, dtype=values.dtype))


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
    """Return what `mean` sends: all in one, which the network cuts as it likes."""
    return [make_entry("all_reduce", name, "", channel.codec.nbytes(count, itemsize), world, level)]
