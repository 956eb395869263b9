"""Exchanges between owners of rows, which topologies are made of, and what they send."""

from suite.comm.channel import Channel
from suite.comm.transport import Entry, entry


def to_owners_traffic(
    name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
) -> list[Entry]:
    """What `to_owners` sends of (world, count) values; all ranks alike."""
    return [entry("all_to_all", name, "", world * payload, world) for payload in channel.payloads(count, itemsize)]


def gather_traffic(name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int) -> list[Entry]:
    """What `gather` sends of a rank's (count,) values; all ranks alike."""
    return [entry("all_gather", name, "", payload, world) for payload in channel.payloads(count, itemsize)]
