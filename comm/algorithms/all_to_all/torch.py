"""All-to-all reduction in torch."""

from torch import Tensor

from suite.comm.coder.torch import Coder, chunks
from suite.comm.transport.torch import Transport


def mean(name: str, values: Tensor, *, coder: Coder, transport: Transport) -> Tensor:
    """The mean over ranks of a flat (n,) array."""
    world, count = transport.world, len(values)
    rows = chunks(values, world)
    payloads = transport.all_to_all(f"{name}/scatter", coder.encode("worker", rows))
    mean = coder.total(payloads, rows[0]) / world
    parts = transport.all_gather(f"{name}/gather", coder.encode("server", mean[None]))
    return coder.decode(parts, mean).view(-1)[:count]
