"""The ring that encodes at every hop in torch."""

from torch import Tensor

from suite.comm.coder.torch import Coder, chunks
from suite.comm.transport.torch import Transport


def mean(name: str, values: Tensor, *, coder: Coder, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    world, rank, count = transport.world, transport.rank, len(values)
    rows = chunks(values, world)
    partial = rows[rank]
    for hop in range(world - 1):
        payload = transport.shift(f"{name}/hop", coder.encode(f"hop{hop}", partial[None]))
        partial = coder.decode(payload, partial)[0] + rows[(rank - hop - 1) % world]
    parts = transport.all_gather(f"{name}/gather", coder.encode("server", partial[None] / world))
    return coder.decode(parts, partial).roll(1, 0).reshape(-1)[:count]  # rank r holds chunk r + 1
