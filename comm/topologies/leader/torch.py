"""Leaders, in torch."""

from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.coder.torch import Coders
from suite.comm.topologies._owners.torch import gather, to_owners
from suite.comm.transport.torch import Transport

__all__ = ["gather", "mean", "to_owners"]


def mean(name: str, values: Tensor, *, channel: Channel, coders: Coders, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    inner, local = transport.inner, coders(f"{name}/inner", channel.inner, whole=True)
    started = [inner.to_first(f"{name}/inner", payload[0]) for payload in local.encode("worker", values[None])]
    mine = local.total((arriving.wait() for arriving in started), values).div_(inner.world)
    if inner.rank == 0:
        across = coders(f"{name}/outer", channel.codec)
        mine = channel.algorithm.mean(f"{name}/outer", mine, coder=across, transport=transport.outer)
    told = [inner.broadcast(f"{name}/inner", payload) for payload in local.encode("server", mine[None])]
    return local.decode((arriving.wait() for arriving in told), values)[0]
