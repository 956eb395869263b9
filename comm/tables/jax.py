"""Tables split by rows, in jax inside `shard_map`."""

import jax.numpy as jnp
from jax import Array

from suite.comm.transport.jax import Transport
from suite.contract import Rows


def fetch_rows(name: str, table: Array, ids: Array, transport: Transport) -> Array:
    """Return the rows of the table that this rank's samples name; see `suite.comm.tables.torch.fetch_rows`."""
    if transport.world == 1:
        return table[ids]
    local = transport.all_gather(name, ids) - transport.rank * len(table)
    here = (local >= 0) & (local < len(table))
    rows = jnp.where(here[..., None], table[jnp.clip(local, 0, len(table) - 1)], 0.0)
    received = transport.all_to_all(name, rows.reshape(transport.world, -1, *rows.shape[1:]))
    total = received[0]
    for rank in range(1, transport.world):
        total = total + received[rank]  # of each row, one term is not zero
    return total


def sum_gradient(name: str, ids: Array, rows: Array, table: Array, transport: Transport) -> Rows:
    """Return the gradient of this rank's rows, summed over ranks; an id may occur several times.

    Rows of other owners are kept as zeros at row 0, because shapes must not depend on values.
    """
    ids, rows = ids.reshape(-1), rows.reshape(-1, rows.shape[-1])
    if transport.world > 1:
        ids, rows = transport.all_gather(name, ids), transport.all_gather(name, rows)
        ids = ids - transport.rank * len(table)
        here = (ids >= 0) & (ids < len(table))
        ids, rows = jnp.where(here, ids, 0), jnp.where(here[:, None], rows, 0.0)
    return Rows(ids, rows)
