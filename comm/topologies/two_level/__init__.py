"""Two levels: sum within each host, then each rank exchanges one part of the sum with the other hosts.

Reduce-scatter inside the host, the channel's algorithm between hosts on 1/L of the values, all-gather inside: between
hosts each of L ranks moves an L-th of what it would move if hosts were not told apart. The levels may have codecs of
their own.
"""

from suite.comm.contract import Channel, Encoders, Handle, Transport, Value
from suite.comm.exchange import gather_rows, scatter_rows
from suite.comm.transport import Entry, make_entry

SUMMARY = "reduce-scatter within hosts, the algorithm between hosts, all-gather within hosts"
CITATION = "Mikami et al. 2018, arXiv:1811.05233; Jia et al. 2018, arXiv:1807.11205"
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
    inner, outer = transport.inner, transport.outer
    local, across = encoders(f"{name}/inner", channel.inner, whole=True), encoders(f"{name}/outer", channel.codec)
    mine = inner.averaged(scatter_rows(f"{name}/inner", inner.chunks(values), local, inner))
    mine = channel.algorithm.mean(f"{name}/outer", mine, encoder=across, transport=outer)
    return gather_rows(f"{name}/inner", mine, local, inner).reshape(-1)[: values.shape[0]]


def to_owners(
    name: str,
    rows: Value,
    *,
    channel: Channel,
    encoders: Encoders[Value, Handle],
    transport: Transport[Value, Handle],
) -> Value:
    """Row r of the mean over ranks of (world, k), on rank r.

    First each host sums its rows: the rank in place l takes those whose owners are in place l on their hosts.
    """
    inner, outer = transport.inner, transport.outer
    by_place = rows.reshape(outer.world, inner.world, -1).swapaxes(0, 1).reshape(inner.world, -1)
    mine = scatter_rows(f"{name}/inner", by_place, encoders(f"{name}/inner", channel.inner, whole=True), inner)
    across = encoders(f"{name}/outer", channel.codec)
    return transport.averaged(scatter_rows(f"{name}/outer", mine.reshape(outer.world, -1), across, outer))


def gather(
    name: str,
    mine: Value,
    *,
    channel: Channel,
    encoders: Encoders[Value, Handle],
    transport: Transport[Value, Handle],
) -> Value:
    """Every rank's (k,) values, (world, k): first between hosts, then inside each host."""
    inner, outer = transport.inner, transport.outer
    hosts = gather_rows(f"{name}/outer", mine, encoders(f"{name}/outer", channel.codec), outer)
    local = encoders(f"{name}/inner", channel.inner, whole=True)
    ranks = gather_rows(f"{name}/inner", hosts.reshape(-1), local, inner)
    return ranks.reshape(inner.world, outer.world, -1).swapaxes(0, 1).reshape(transport.world, -1)


def traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """Return what `mean` sends, on rank 0."""
    part, how = -(-count // locals), {"channel": channel, "itemsize": itemsize}
    inside = channel.inner.nbytes(part, itemsize)
    return [
        make_entry("all_to_all", f"{name}/inner", "", locals * inside, locals, "inner"),
        *channel.algorithm.traffic(f"{name}/outer", part, **how, world=world // locals, level="outer"),
        make_entry("all_gather", f"{name}/inner", "", inside, locals, "inner"),
    ]


def to_owners_traffic(
    name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
) -> list[Entry]:
    """Return what `to_owners` sends of (world, count) values."""
    hosts = world // locals
    inside, across = channel.inner.nbytes(hosts * count, itemsize), channel.payloads(count, itemsize)
    return [
        make_entry("all_to_all", f"{name}/inner", "", locals * inside, locals, "inner"),
        *(make_entry("all_to_all", f"{name}/outer", "", hosts * payload, hosts, "outer") for payload in across),
    ]


def gather_traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """Return what `gather` sends of a rank's (count,) values."""
    hosts = world // locals
    inside, across = channel.inner.nbytes(hosts * count, itemsize), channel.payloads(count, itemsize)
    return [
        *(make_entry("all_gather", f"{name}/outer", "", payload, hosts, "outer") for payload in across),
        make_entry("all_gather", f"{name}/inner", "", inside, locals, "inner"),
    ]
