"""Exchanges between owners of rows, in torch."""

from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.coder.torch import Coder, Coders
from suite.comm.transport.torch import Transport


def scattered(name: str, rows: Tensor, coder: Coder, transport: Transport) -> Tensor:
    """Row r of the sum over ranks of (world, k), on rank r."""
    return coder.total(transport.all_to_all(name, coder.encode("owners", rows)), rows[0])


def gathered(name: str, mine: Tensor, coder: Coder, transport: Transport) -> Tensor:
    """Every rank's (k,) values as all decode them, (world, k)."""
    return coder.decode(transport.all_gather(name, coder.encode("gather", mine[None])), mine)


def to_owners(name: str, rows: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """Row r of the mean over ranks of (world, k), on rank r; all ranks alike."""
    return scattered(name, rows, coders(name, channel.codec), transport) / transport.world


def gather(name: str, mine: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """Every rank's (k,) values, (world, k); all ranks alike."""
    return gathered(name, mine, coders(name, channel.codec), transport)
