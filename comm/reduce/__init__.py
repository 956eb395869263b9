"""Reductions that engines offer to optimizers (`suite.contract.Reduce`), over the channels of a run.

With error feedback, each name has its own residuals, which are part of the checkpoint.

Rows of a stack are sent to their owners, and from the owners to all ranks, in one of two ways. Sliced: every rank has
as many rows as the owner with the most, and the rows are sent by a reduce-scatter and an all-gather. As a mean of all
rows: by an all-reduce, in the second direction with zeros from all ranks but the owner. A mean sends twice the rows
whatever the number of ranks; it is used where padding makes the slices larger, for example with more ranks than rows.
"""

from suite.comm.contract import Channel
from suite.comm.layout import list_slots
from suite.comm.transport import Entry


def as_mean(owners: tuple[int, ...], world: int) -> bool:
    """Return whether rows are sent as a mean of all rows, because over half of the slices would be padding."""
    return 2 * len(owners) < len(list_slots(owners, world))


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
    """Return what rank 0 sends when rows are sent to their owners, or gathered from them.

    Args:
        name: of the stack, for the ledger.
        owners: the rank of each row.
        count: values of one row.
        back: from the owners to all ranks, instead of to the owners.
        channel: of the rows.
        itemsize: bytes of a value before it is encoded.
        world: number of ranks.
        locals: ranks of one host; None with one level.
    """
    how = {"channel": channel, "itemsize": itemsize, "world": world, "locals": locals or 1}
    if as_mean(owners, world):
        return channel.topology.traffic(name, len(owners) * count, **how)
    sliced = channel.topology.gather_traffic if back else channel.topology.to_owners_traffic
    return sliced(name, len(list_slots(owners, world)) // world * count, **how)
