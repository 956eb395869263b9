"""Exchanges between owners of rows, in torch."""

from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.coder.torch import Coders
from suite.comm.exchange.torch import gathered, scattered
from suite.comm.transport.torch import Transport


def to_owners(name: str, rows: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """Row r of the mean over ranks of (world, k), on rank r; all ranks alike."""
    return scattered(name, rows, coders(name, channel.codec), transport).div_(transport.world)


def gather(name: str, mine: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """Every rank's (k,) values, (world, k); all ranks alike."""
    return gathered(name, mine, coders(name, channel.codec), transport)
