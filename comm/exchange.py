"""Exchanges that algorithms and topologies share: send rows to their owners and sum them, or from owners to all ranks.

Values are encoded and sent in pieces. In torch, a piece is sent while the next piece is encoded or the previous one is
decoded. In jax, XLA runs one collective after another, but pieces help there too: between processes on CPUs, gloo
signals that a receiver is ready over the connection that carries data in the other direction, and a short piece delays
this signal less.
"""

from suite.comm.contract import Encoder, Handle, Transport, Value


def scatter_rows(
    name: str, rows: Value, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle], slot: str = "owners"
) -> Value:
    """Row r of the sum over ranks of (world, k), on rank r; a new array (k,). `slot` is the encoder's."""
    received = [transport.all_to_all(name, payload) for payload in encoder.encode(slot, rows)]
    return encoder.total(received, rows[0])


def gather_rows(
    name: str, mine: Value, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle], slot: str = "gather"
) -> Value:
    """Every rank's (k,) values as all ranks decode them, (world, k)."""
    received = [transport.all_gather(name, payload) for payload in encoder.encode(slot, mine[None])]
    return encoder.decode(received, mine)
