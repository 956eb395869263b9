"""Exchanges with the owners of rows for topologies without special ones: all ranks alike."""

from suite.comm.contract import Channel, Encoders, Handle, Transport, Value
from suite.comm.exchange import gather_rows, scatter_rows
from suite.comm.transport import Entry, make_entry


def to_owners(
    name: str,
    rows: Value,
    *,
    channel: Channel,
    encoders: Encoders[Value, Handle],
    transport: Transport[Value, Handle],
) -> Value:
    """Row r of the mean over ranks of (world, k), on rank r."""
    return transport.averaged(scatter_rows(name, rows, encoders(name, channel.codec), transport))


def gather(
    name: str,
    mine: Value,
    *,
    channel: Channel,
    encoders: Encoders[Value, Handle],
    transport: Transport[Value, Handle],
) -> Value:
    """Every rank's (k,) values, (world, k)."""
    return gather_rows(name, mine, encoders(name, channel.codec), transport)


def to_owners_traffic(
    name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
) -> list[Entry]:
    """Return what `to_owners` sends of (world, count) values."""
    return [make_entry("all_to_all", name, "", world * payload, world) for payload in channel.payloads(count, itemsize)]


def gather_traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """Return what `gather` sends of a rank's (count,) values."""
    return [make_entry("all_gather", name, "", payload, world) for payload in channel.payloads(count, itemsize)]
