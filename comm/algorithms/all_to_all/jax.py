"""All-to-all reduction in jax."""

from jax import Array

from suite.comm.coder.jax import Coder, chunks
from suite.comm.transport.jax import Transport


def mean(name: str, values: Array, *, coder: Coder, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    world, count = transport.world, values.size
    rows = chunks(values, world)
    payloads = transport.all_to_all(f"{name}/scatter", coder.encode("worker", rows))
    mean = coder.total(payloads, rows[0]) / world
    parts = transport.all_gather(f"{name}/gather", coder.encode("server", mean[None]))
    return coder.decode(parts, mean).reshape(-1)[:count]
