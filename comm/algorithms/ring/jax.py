"""The ring that encodes at every hop in jax."""

import jax.numpy as jnp
from jax import Array, lax

from suite.comm.coder.jax import Coder, chunks
from suite.comm.exchange.jax import divided, gathered
from suite.comm.transport.jax import Transport


def mean(name: str, values: Array, *, coder: Coder, transport: Transport) -> Array:
    """The mean over ranks of a flat (n,) array."""
    world, rank, count = transport.world, transport.rank, values.size
    rows = chunks(values, world)
    partial = lax.dynamic_index_in_dim(rows, rank, keepdims=False)
    for hop in range(world - 1):
        encoded = coder.encode(f"hop{hop}", partial[None])
        payloads = [transport.shift(f"{name}/hop{hop}", payload) for payload in encoded]
        mine = lax.dynamic_index_in_dim(rows, (rank - hop - 1) % world, keepdims=False)
        partial = coder.decode(payloads, partial)[0] + mine
    parts = gathered(f"{name}/gather", divided(partial, world), coder, transport, "server")
    return jnp.roll(parts, 1, 0).reshape(-1)[:count]  # rank r holds chunk r + 1
