"""Communication between ranks, as an engine offers it to an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

Value = TypeVar("Value")  # an array of one framework: `torch.Tensor` or `jax.Array`


class Reduce(Protocol[Value]):
    """Communication between ranks, as an engine offers it to an optimizer: `reduce: Reduce[Tensor]` or `Reduce[Array]`.

    Every rank calls the same methods in the same order, with arrays of the same shapes. With one rank, nothing is sent.

    A stack (m, …) holds m matrices or vectors, one in each row. `owners` names the rank that owns each row, for example
    the rank that inverts a factor; k is the largest number of rows that one rank owns. The name of a call is the key of
    its error-feedback residuals and random numbers, and the part before the first "/" is its name in the ledger. Two
    calls in one step have different names.

    `suite.comm.reduce.torch` and `suite.comm.reduce.jax` implement this.
    """

    @property
    def world(self) -> int:
        """Number of ranks."""
        ...

    @property
    def rank(self) -> int | Value:
        """This rank's number: an integer in torch, a traced integer in jax."""
        ...

    def exact(self, values: dict[str, Value]) -> dict[str, Value]:
        """Return the mean over ranks of small values; they are never compressed."""
        ...

    def mean(self, name: str, values: dict[str, Value], *, gradients: bool = False) -> dict[str, Value]:
        """Return the mean over ranks, compressed as the run's communication mode says.

        Args:
            name: for the ledger, residuals and random numbers.
            values: arrays by name, of any shape.
            gradients: whether the values are gradients, by the names of their parameters. Gradients are sent in
                buckets, each through the channel of its kind of layer (`comm.kinds`); all other values are sent
                together, through the channel of the factors (`comm.factors`).
        """
        ...

    def to_owners(
        self, name: str, stack: Value | Sequence[Value], owners: tuple[int, ...], *, symmetric: bool = False
    ) -> Value:
        """Return this rank's rows of the mean over ranks of a stack, (k, …); zeros where it owns fewer than k.

        Args:
            name: for the ledger, residuals and random numbers.
            stack: (m, …) on every rank, as one array or as m arrays.
            owners: the rank of each row.
            symmetric: the rows are symmetric matrices (m, n, n), which may be sent as triangles.
        """
        ...

    def gather(
        self, name: str, slices: Value, owners: tuple[int, ...], *, exact: bool = False, symmetric: bool = False
    ) -> Value:
        """Return the stack (m, …) of all owners' rows; the inverse of `to_owners`.

        Args:
            name: for the ledger, residuals and random numbers.
            slices: this rank's rows (k, …).
            owners: the rank of each row.
            exact: send the rows uncompressed; they may have any dtype.
            symmetric: the rows are symmetric matrices (m, n, n), which may be sent as triangles.
        """
        ...

    def mine(self, stack: Value, owners: tuple[int, ...]) -> Value:
        """Return the rows (k, …) that this rank owns of a stack (m, …) which all ranks hold; nothing is sent."""
        ...
