"""What the torch engine asks of a schedule, and the answer that does nothing special."""

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.comm.reduce.torch import Reduce, Tree
from suite.contract import Parcel


class Schedule:
    """After the backward pass.

    Args:
        reduce: takes the means.
        named: the parameters whose gradients travel; not those of tables by rows.
    """

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        self.reduce, self.named = reduce, dict(named)

    def begin(self) -> None:
        """A step begins."""

    def watch(
        self, weight: Tensor, *, parcels: Mapping[str, Parcel], gradients: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Around the backward pass that completes the gradients; they are to be divided by `weight`.

        Args:
            weight: of all ranks.
            parcels: statistics that this pass completes, too.
            gradients: whether gradients are to travel at all.
        """
        return contextlib.nullcontext()

    def observed(self, name: str, value: Tensor) -> None:
        """This rank's share of a statistic is complete."""

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """The mean over ranks of what the sums, divided by `weight`, are here."""
        torch._foreach_div_(list(sums.values()), weight)
        return self.reduce.mean("gradients", sums)
