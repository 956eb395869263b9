"""All-to-all reduction in jax."""

from jax import Array

from suite.comm.coder.jax import Coder, chunks
from suite.comm.exchange.jax import divided, gathered, scattered
from suite.comm.transport.jax import Transport


def mean(name: str, values: Array, *, coder: Coder, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    world, count = transport.world, values.size
    rows = chunks(values, world)
    mean = divided(scattered(f"{name}/scatter", rows, coder, transport, "worker"), world)
    return gathered(f"{name}/gather", mean, coder, transport, "server").reshape(-1)[:count]
