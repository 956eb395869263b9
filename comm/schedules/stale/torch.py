"""During the next step, in torch."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from suite.comm.reduce.torch import Reduce, Tree
from suite.comm.schedules._base.torch import Schedule

PREFIX = "stale/"  # of the last step's gradients among the residuals


class Stale(Schedule):
    """One thread takes the mean of the last step's gradients while this step computes its own."""

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        super().__init__(reduce, named)
        self.apart = Reduce(reduce.transport.apart(), reduce.channels)  # the engine goes on with collectives of its own
        self.thread = ThreadPoolExecutor(1)

    def begin(self) -> None:
        """Send the last step's gradients."""
        self.apart.state = state = self.reduce.state
        self.apart.key = self.reduce.key
        last = {name: state.get(PREFIX + name, torch.zeros_like(value)) for name, value in self.named.items()}
        self.sent: Future[Tree] = self.thread.submit(self._mean, last)

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """Keep this step's gradients, and wait for the last step's."""
        torch._foreach_div_(list(sums.values()), weight)
        found = self.sent.result()
        self.reduce.state |= {PREFIX + name: value for name, value in sums.items()}
        return found

    @torch.no_grad()
    def _mean(self, values: Tree) -> Tree:
        return self.apart.mean("gradients", values)


make = Stale
