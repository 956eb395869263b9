"""Building blocks of optimizers, in torch and in jax."""

from collections.abc import Mapping
from typing import Any


class Alone:
    """`Reduce` of an optimizer without an engine: one rank, which owns all rows.

    The mean over one rank is the value itself, and nothing is sent.
    """

    world = 1
    rank = 0

    def exact(self, values: Mapping[str, Any]) -> Any:
        """Return the mean of small values over ranks: the values."""
        return values

    def mean(self, name: str, values: Mapping[str, Any], *, gradients: bool = False) -> Any:
        """Return the mean of values over ranks: the values."""
        return values

    def to_owners(self, name: str, stack: Any, owners: tuple[int, ...], *, symmetric: bool = False) -> Any:
        """Return the rows that this rank owns, averaged over ranks: the stack."""
        return stack

    def gather(
        self, name: str, slices: Any, owners: tuple[int, ...], *, exact: bool = False, symmetric: bool = False
    ) -> Any:
        """Return the rows of all owners: the slices."""
        return slices

    def mine(self, stack: Any, owners: tuple[int, ...]) -> Any:
        """Return the rows that this rank owns: the stack."""
        return stack


ALONE = Alone()
