"""Tables split by rows, in torch."""

import torch
from torch import Tensor

from suite.comm.transport.torch import Transport


def fetch_rows(name: str, table: Tensor, ids: Tensor, transport: Transport) -> Tensor:
    """Return the rows of the table that this rank's samples name.

    Args:
        name: of the table, for the ledger.
        table: this rank's (k, d) rows.
        ids: (n, …) integers, rows of the whole table.
        transport: sends the bytes and counts them.

    Returns:
        (n, …, d).
    """
    if transport.world == 1:
        return table[ids.long()]
    local = transport.all_gather(name, ids).wait().long() - transport.rank * len(table)
    here = (local >= 0) & (local < len(table))
    rows = torch.where(here[..., None], table[local.clamp(0, len(table) - 1)], 0.0)
    received = transport.all_to_all(name, rows.unflatten(0, (transport.world, -1)))
    return received.wait().sum(0)  # of each row, one term is not zero


def sum_gradient(name: str, ids: Tensor, rows: Tensor, table: Tensor, transport: Transport) -> Tensor:
    """Return this rank's rows' gradient, summed over ranks: a sparse (k, d) tensor, as torch's optimizers accept it.

    Args:
        name: of the table, for the ledger.
        ids: (n, …) integers, as given to `fetch_rows`.
        rows: (n, …, d), the gradient of what `fetch_rows` returned.
        table: this rank's (k, d) rows.
        transport: sends the bytes and counts them.
    """
    ids, rows = ids.reshape(-1).long(), rows.reshape(-1, rows.shape[-1])
    if transport.world > 1:
        ids, rows = (arriving.wait() for arriving in [transport.all_gather(name, value) for value in (ids, rows)])
        ids = ids - transport.rank * len(table)
        here = (ids >= 0) & (ids < len(table))
        ids, rows = ids[here], rows[here]
    return torch.sparse_coo_tensor(ids[None], rows, table.shape, check_invariants=False).coalesce()
