"""Reductions over ranks in torch."""

from types import ModuleType

import torch
from torch import Tensor

from suite.comm.transport.torch import Transport

Tree = dict[str, Tensor]


class Reduce:
    """Means over ranks, and stacks split among owners.

    Args:
        transport: moves and counts the bytes.
        codec: encodes what `mean` sends.
        algorithm: how `mean` is taken.
        feedback: keep what the codec lost and add it to the next values of the same name (Seide et al. 2014).
    """

    def __init__(self, transport: Transport, *, codec: ModuleType, algorithm: ModuleType, feedback: bool = False):
        self.transport, self.codec, self.algorithm, self.feedback = transport, codec, algorithm, feedback
        self.state: Tree = {}  # residuals by name; each rank has its own

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.transport.world

    def exact(self, values: Tree) -> Tree:
        """The mean of small values over ranks, never compressed."""
        return values if self.world == 1 or not values else self._joined("exact", values, exact=True)

    def mean(self, name: str, values: Tree) -> Tree:
        """The mean over ranks, in the run's communication mode."""
        return values if self.world == 1 else self._joined(name, values, exact=False)

    def _joined(self, name: str, values: Tree, *, exact: bool) -> Tree:
        flat = torch.cat([value.reshape(-1) for value in values.values()])
        if exact:
            total = self.transport.all_reduce(name, flat) / self.world
        else:
            if self.feedback:
                flat = flat + self.state.get(name, torch.zeros_like(flat))
            total, sent = self.algorithm.mean(name, flat, codec=self.codec, transport=self.transport)
            if self.feedback:
                self.state[name] = flat - sent
        parts = total.split([value.numel() for value in values.values()])
        return {key: part.view(value.shape) for (key, value), part in zip(values.items(), parts, strict=True)}

    def to_owners(self, name: str, stack: Tensor) -> Tensor:
        """Rank r's share, rows [r · k, (r + 1) · k), of the mean over ranks of a (world · k, …) stack.

        By all-to-all and a sum in rank order: gloo's own reduce-scatter moves twice the bytes.
        """
        if self.world == 1:
            return stack
        rows = self.transport.all_to_all(name, stack.reshape(self.world, -1, *stack.shape[1:]))
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        return total / self.world

    def gather(self, name: str, slices: Tensor) -> Tensor:
        """Every owner's rows put together again: (k, …) on each rank to (world · k, …) on all."""
        return slices if self.world == 1 else self.transport.all_gather(name, slices)

    def mine(self, stack: Tensor) -> Tensor:
        """This rank's rows of a stack that all ranks hold; nothing is sent."""
        return stack.chunk(self.world)[self.transport.rank]
