"""All ranks alike, in torch."""

from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.coder.torch import Coders
from suite.comm.topologies._owners.torch import gather, to_owners
from suite.comm.transport.torch import Transport

__all__ = ["gather", "mean", "to_owners"]


def mean(name: str, values: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    return channel.algorithm.mean(name, values, coder=coders(name, channel.codec), transport=transport)
