"""All-to-all reduction in torch."""

from torch import Tensor

from suite.comm.coder.torch import Coder, chunks
from suite.comm.exchange.torch import gathered, scattered
from suite.comm.transport.torch import Transport


def mean(name: str, values: Tensor, *, coder: Coder, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    world, count = transport.world, len(values)
    rows = chunks(values, world)
    mean = scattered(f"{name}/scatter", rows, coder, transport, "worker").div_(world)
    return gathered(f"{name}/gather", mean, coder, transport, "server").view(-1)[:count]
