"""Schedule interface of the torch engine; this class sends after the backward pass."""

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.comm.reduce.torch import Reduce, Tree
from suite.contract import Parcel


class Schedule:
    """Sends gradients after the backward pass; the base class of the other schedules.

    Args:
        reduce: takes the means.
        named: the parameters whose gradients are sent, by name; not those of tables split by rows.

    Attributes:
        name: under which the bytes are counted.
    """

    name = "gradients"

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        self.reduce, self.named = reduce, dict(named)

    def begin(self) -> None:
        """Called when a step begins."""

    def watch(
        self, weight: Tensor, *, parcels: Mapping[str, Parcel], gradients: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """A context around the backward pass that completes the gradients.

        Args:
            weight: mean over ranks of the summed sample weights, by which gradients are divided before they are sent.
            parcels: stacks of statistics that this pass also completes.
            gradients: whether gradients are sent at all.
        """
        return contextlib.nullcontext()

    def observed(self, name: str, value: Tensor) -> None:
        """Called when this rank's share of a statistic is complete."""

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """Return the mean over ranks of this rank's gradients `sums` / `weight`."""
        torch._foreach_div_(list(sums.values()), weight)
        return self.reduce.mean(self.name, sums, gradients=True)
