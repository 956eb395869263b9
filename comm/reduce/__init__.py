"""What optimizers and the engine see of communication: `exact`, `mean`, `to_owners`, `gather`, `mine`.

The channels and a transport come in from outside; each name has its own residuals where error feedback is on, which
the checkpoint keeps.

Rows of a stack travel to their owners, or from them to all, in one of two ways. In slices, with as many rows for each
rank as the busiest owner has: a reduce-scatter, an all-gather. Or as a mean of all rows: an all-reduce, on the way back
with zeros from all but the owner; that is twice the rows at any number of ranks, and is taken where the slices would be
more, as with more ranks than rows. (With the algorithm `gather` a mean is dear everywhere, and stays so here.)
"""

from suite.comm.channel import Channel
from suite.comm.layout import slots
from suite.comm.transport import Entry


def as_mean(owners: tuple[int, ...], world: int) -> bool:
    """Whether rows travel as a mean of all, because in slices over half would be padding."""
    return 2 * len(owners) < len(slots(owners, world))


def traffic(
    name: str,
    owners: tuple[int, ...],
    count: int,
    *,
    back: bool,
    channel: Channel,
    itemsize: int,
    world: int,
    locals: int | None,
) -> list[Entry]:
    """What rank 0 sends for rows on the way to their owners, or `back` from them.

    Args:
        name: what the ledger calls it.
        owners: of each row.
        count: values of one row.
        back: from the owners to all, else to the owners.
        channel: of the rows.
        itemsize: bytes of a value before it is encoded.
        world: ranks.
        locals: ranks of one host; None where hosts are not told apart.
    """
    how = {"channel": channel, "itemsize": itemsize, "world": world, "locals": locals or 1}
    if as_mean(owners, world):
        return channel.topology.traffic(name, len(owners) * count, **how)
    sliced = channel.topology.gather_traffic if back else channel.topology.to_owners_traffic
    return sliced(name, len(slots(owners, world)) // world * count, **how)
