"""Exchanges of encoded rows in torch."""

from torch import Tensor

from suite.comm.coder.torch import Coder
from suite.comm.transport.torch import Transport


def scattered(name: str, rows: Tensor, coder: Coder, transport: Transport, slot: str = "owners") -> Tensor:
    """Row r of the sum over ranks of (world, k), on rank r, a new array; `slot` is the coder's."""
    started = [transport.all_to_all(name, payload) for payload in coder.encode(slot, rows)]
    return coder.total((arriving.wait() for arriving in started), rows[0])


def gathered(name: str, mine: Tensor, coder: Coder, transport: Transport, slot: str = "gather") -> Tensor:
    """Every rank's (k,) values as all decode them, (world, k)."""
    started = [transport.all_gather(name, payload) for payload in coder.encode(slot, mine[None])]
    return coder.decode((arriving.wait() for arriving in started), mine)
