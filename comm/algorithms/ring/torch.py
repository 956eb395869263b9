"""The ring that encodes at every hop in torch."""

from torch import Tensor

from suite.comm.coder.torch import Coder, chunks
from suite.comm.exchange.torch import gathered
from suite.comm.transport.torch import Transport


def mean(name: str, values: Tensor, *, coder: Coder, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    world, rank, count = transport.world, transport.rank, len(values)
    rows = chunks(values, world)
    partial = rows[rank]
    for hop in range(world - 1):
        payloads = coder.encode(f"hop{hop}", partial[None])
        started = [transport.shift(f"{name}/hop{hop}", payload) for payload in payloads]
        partial = coder.decode((arriving.wait() for arriving in started), partial)[0] + rows[(rank - hop - 1) % world]
    parts = gathered(f"{name}/gather", partial / world, coder, transport, "server")
    return parts.roll(1, 0).reshape(-1)[:count]  # rank r holds chunk r + 1
