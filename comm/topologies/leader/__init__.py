"""One leader per host: its first rank sums the host's values, exchanges with other leaders, and broadcasts.

Less goes on inside a host's memory than with two equal levels, but only one rank of a host uses the network. What the
optimizers' owners exchange does not go by leaders: rows have owners on every rank.
"""

from suite.comm.contract import Channel, Encoders, Handle, Transport, Value
from suite.comm.topologies._owners import gather, gather_traffic, to_owners, to_owners_traffic
from suite.comm.transport import Entry, make_entry

__all__ = ["gather", "gather_traffic", "mean", "to_owners", "to_owners_traffic", "traffic"]

SUMMARY = "to the first rank of each host, the algorithm between these ranks, and back"
CITATION = "Goyal et al. 2017, arXiv:1706.02677, section 4"
LEVELS = 2


def mean(
    name: str,
    values: Value,
    *,
    channel: Channel,
    encoders: Encoders[Value, Handle],
    transport: Transport[Value, Handle],
) -> Value:
    """Return the mean over ranks of a flat (n,) array."""
    inner, local = transport.inner, encoders(f"{name}/inner", channel.inner, whole=True)
    up = [inner.to_first(f"{name}/inner", payload[0]) for payload in local.encode("worker", values[None])]
    mean = inner.averaged(local.total(up, values))
    if (leaders := transport.leaders) is not None:
        across = encoders(f"{name}/outer", channel.codec)
        mean = channel.algorithm.mean(f"{name}/outer", mean, encoder=across, transport=leaders)
    down = [inner.broadcast(f"{name}/inner", payload) for payload in local.encode("server", mean[None])]
    return local.decode(down, values)[0]


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """Return what `mean` sends, on rank 0, a leader."""
    payload, how = channel.inner.nbytes(count, itemsize), {"channel": channel, "itemsize": itemsize}
    return [
        make_entry("to_first", f"{name}/inner", "", payload, locals, "inner"),
        *channel.algorithm.traffic(f"{name}/outer", count, **how, world=world // locals, level="outer"),
        make_entry("broadcast", f"{name}/inner", "", payload, locals, "inner"),
    ]
