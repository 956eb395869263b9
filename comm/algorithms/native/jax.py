"""Native all-reduce in jax."""

from jax import Array

from suite.comm.coder.jax import Coder
from suite.comm.exchange.jax import divided
from suite.comm.transport.jax import Transport


def mean(name: str, values: Array, *, coder: Coder, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    total = transport.all_reduce(name, coder.codec.narrow(values))
    return divided(total.astype(values.dtype), transport.world)
