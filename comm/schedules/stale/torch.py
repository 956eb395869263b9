"""Double buffering in torch."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import torch
from torch import Tensor

from suite.comm.contract import Channel
from suite.comm.reduce.torch import Reduce, Tree
from suite.comm.schedules._base.torch import Schedule
from suite.comm.schedules._base.torch_background import Background
from suite.contract import Parcel

PREFIX = "stale/"  # of the last step's gradients among the residuals, in memory and in checkpoints
FORWARD = 1 / 3  # share of the bytes that is sent before the step's first collective: forward is a third of a step

Bucket = tuple[str, Channel, list[str]]


class DoubleBuffering(Schedule):
    """A thread takes the mean of the last step's gradients while this step computes its gradients.

    The engine has its own collectives during a step: rows of tables, and the sum of the samples' weights before the
    last backward pass. All collectives of a rank must have one order, the same on every rank: two communicators whose
    collectives come in different orders deadlock if they share a stream. So the gradients are sent in two parts. The
    first part is sent when the step begins, and the engine's collectives wait for it. The second part is sent during
    the last backward pass, in which the engine has no collectives.
    """

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        super().__init__(reduce, named)
        transport = copy.copy(reduce.transport)  # the same group, because there is one order
        transport.before = None
        self.delayed = Reduce(transport, reduce.channels)
        reduce.transport.before = self._wait
        self.background = Background(next((value.device for value in self.named.values()), torch.device("cpu")))
        self.sent: list[Future[Tree]] = []
        self.rest: list[Bucket] = []
        self.last: Tree = {}

    def begin(self) -> None:
        """Send the first part of the last step's gradients."""
        self.delayed.state = state = self.reduce.state
        self.delayed.key = self.reduce.key
        stored = {name: state.get(PREFIX + name) for name in self.named}
        self.last = {
            name: torch.zeros_like(self.named[name]) if value is None else value for name, value in stored.items()
        }
        if self.reduce.world == 1:
            return
        buckets = self.delayed.buckets(self.last)
        sizes = [sum(self.last[name].nbytes for name in members) for _, _, members in buckets]
        count = sum(sum(sizes[:end]) <= FORWARD * sum(sizes) for end in range(1, len(sizes) + 1))
        self.rest = buckets[count:]
        self._send(buckets[:count])

    @contextlib.contextmanager
    def watch(self, weight: Tensor, *, parcels: Mapping[str, Parcel], gradients: bool = True) -> Iterator[None]:
        """Send the second part during the backward pass."""
        if gradients:
            self._send_rest()
        yield

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """Keep this step's gradients, and wait for the mean of the last step's."""
        torch._foreach_div_(list(sums.values()), weight)
        means = self.last
        if self.reduce.world > 1:
            self._send_rest()
            parts = [self.background.collect(sent) for sent in self.sent]
            means = {name: value for part in parts for name, value in part.items()}
            self.sent = []
        self.reduce.state |= {PREFIX + name: value for name, value in sums.items()}
        return {name: means[name] for name in sums}

    def _wait(self) -> None:
        """Wait for what has been sent; the engine's transport calls this before each collective."""
        for sent in self.sent:
            self.background.collect(sent)

    def _send_rest(self) -> None:
        self._send(self.rest)
        self.rest = []

    def _send(self, buckets: list[Bucket]) -> None:
        if buckets:
            reads = [self.last[name] for _, _, members in buckets for name in members]
            self.sent.append(self.background.submit(lambda: self._means(buckets), reads))

    @torch.no_grad()
    def _means(self, buckets: list[Bucket]) -> Tree:
        means: Tree = {}
        for bucket, channel, members in buckets:
            values = {name: self.last[name] for name in members}
            means |= self.delayed.bucket(f"{self.name}/{bucket}", channel, values)
        return means


make = DoubleBuffering
