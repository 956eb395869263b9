"""Array operations and collectives that algorithms and topologies are written over, and the exchanges that they share.

Rows are sent to their owners and summed, or from owners to all ranks. Values are encoded and sent in pieces. In torch,
a piece is sent while the next piece is encoded or the previous one is decoded. In jax, XLA runs one collective after
another, but pieces help there too: between processes on CPUs, gloo signals that a receiver is ready over the connection
that carries data in the other direction, and a short piece delays this signal less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from suite.comm.codecs._codec import Codec


class Array(Protocol):
    """Operations that `torch.Tensor` and `jax.Array` share."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes of the axes."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of the elements, as the framework names it."""
        ...

    def __getitem__(self, index: Any, /) -> Self:
        """Some of the elements."""
        ...

    def __add__(self, other: Any, /) -> Self:
        """Elementwise sum."""
        ...

    def reshape(self, *shape: int) -> Self:
        """Return the same elements in another shape; one size may be -1."""
        ...

    def swapaxes(self, first: int, second: int, /) -> Self:
        """Return the same elements with two axes exchanged."""
        ...


Value = TypeVar("Value", bound=Array)
HandleOut = TypeVar("HandleOut", covariant=True)
HandleIn = TypeVar("HandleIn", contravariant=True)
Handle = TypeVar("Handle")  # what a collective returns: in torch a handle with `wait()`, in jax the array


class Transport(Protocol[Value, HandleOut]):
    """Collectives between the ranks of one group, each counted in the ledger, and array operations that need the ranks.

    Every rank calls the same collectives in the same order. An `Encoder` decodes what they return.

    Attributes:
        world: number of ranks of the group.
        inner: transport between the ranks of one host, with two levels.
        outer: transport between the ranks with the same place on all hosts, with two levels.
        leaders: transport between the first ranks of all hosts, with two levels; None in torch on all other ranks. In
            jax all ranks run one program, and what the other ranks compute with it is ignored.
        xp: `torch` or `jax.numpy`.
    """

    @property
    def world(self) -> int: ...  # noqa: D102
    @property
    def inner(self) -> Transport[Value, HandleOut]: ...  # noqa: D102
    @property
    def outer(self) -> Transport[Value, HandleOut]: ...  # noqa: D102
    @property
    def leaders(self) -> Transport[Value, HandleOut] | None: ...  # noqa: D102
    @property
    def xp(self) -> ModuleType: ...  # noqa: D102

    def all_reduce(self, name: str, value: Value) -> Value:
        """Return the sum over ranks, in the array's own type; torch overwrites `value`."""
        ...

    def all_to_all(self, name: str, value: Value) -> HandleOut:
        """Send row r of (world, …) to rank r; the received rows in rank order, (world, …)."""
        ...

    def all_gather(self, name: str, value: Value) -> HandleOut:
        """Every rank's (k, …) rows one after another, (world · k, …)."""
        ...

    def shift(self, name: str, value: Value) -> HandleOut:
        """Send to the next rank; what the previous rank sent."""
        ...

    def to_first(self, name: str, value: Value) -> HandleOut:
        """Every rank's value on rank 0, (world, …); the other ranks get only their own row."""
        ...

    def broadcast(self, name: str, value: Value) -> HandleOut:
        """Rank 0's value on all ranks."""
        ...

    def averaged(self, total: Value) -> Value:
        """A sum over ranks divided by their number, with the same bits in both frameworks; torch overwrites `total`."""
        ...

    def chunks(self, values: Value) -> Value:
        """(n,) values as one row for each rank, (world, k). The last values are repeated where n is no multiple."""
        ...

    def row(self, rows: Value, behind: int = 0) -> Value:
        """Row (rank - behind) modulo world of (world, k); (k,)."""
        ...


class Encoder(Protocol[Value, HandleIn]):
    """Encodes one named array with a codec, and keeps its error-feedback residuals."""

    codec: Codec

    def encode(self, slot: str, rows: Value) -> Iterable[Value]:
        """(r, k) values to payloads (r, nbytes), each row by itself: one payload for each piece of the length k.

        Args:
            slot: the place in the algorithm that encodes; it has its own residual.
            rows: the values.
        """
        ...

    def decode(self, payloads: Iterable[HandleIn], like: Value) -> Value:
        """Decode the payloads (r, nbytes) of all pieces to (r, k) values; `like` is one row (k,)."""
        ...

    def total(self, payloads: Iterable[HandleIn], like: Value) -> Value:
        """Return the sum of the r rows, in order, that `decode` would return; a new array (k,)."""
        ...


class Encoders(Protocol[Value, HandleIn]):
    """Makes encoders with the run's residuals and random numbers."""

    def __call__(self, name: str, codec: Codec, whole: bool = False) -> Encoder[Value, HandleIn]:
        """Encoder of a named array; with `whole` it does not cut the array into pieces, as inside a host."""
        ...


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
