"""Reduction by all-gather in jax."""

from jax import Array

from suite.comm.coder.jax import Coder
from suite.comm.exchange.jax import divided
from suite.comm.transport.jax import Transport


def mean(name: str, values: Array, *, coder: Coder, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    payloads = [transport.all_gather(name, payload) for payload in coder.encode("worker", values[None])]
    return divided(coder.total(payloads, values), transport.world)
