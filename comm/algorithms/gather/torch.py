"""Reduction by all-gather in torch."""

from torch import Tensor

from suite.comm.coder.torch import Coder
from suite.comm.transport.torch import Transport


def mean(name: str, values: Tensor, *, coder: Coder, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    started = [transport.all_gather(name, payload) for payload in coder.encode("worker", values[None])]
    return coder.total((arriving.wait() for arriving in started), values).div_(transport.world)
