"""Leaders, in jax."""

from jax import Array

from suite.comm.channel import Channel
from suite.comm.coder.jax import Coders
from suite.comm.exchange.jax import divided
from suite.comm.topologies._owners.jax import gather, to_owners
from suite.comm.transport.jax import Leaders, Transport

__all__ = ["gather", "mean", "to_owners"]


def mean(name: str, values: Array, *, channel: Channel, coders: Coders, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    inner, local = transport.inner, coders(f"{name}/inner", channel.inner, whole=True)
    payloads = [inner.to_first(f"{name}/inner", payload[0]) for payload in local.encode("worker", values[None])]
    mine = divided(local.total(payloads, values), inner.world)
    across = coders(f"{name}/outer", channel.codec)
    mine = channel.algorithm.mean(f"{name}/outer", mine, coder=across, transport=Leaders(transport))
    told = [inner.broadcast(f"{name}/inner", payload) for payload in local.encode("server", mine[None])]
    return local.decode(told, values)[0]
