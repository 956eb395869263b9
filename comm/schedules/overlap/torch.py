"""Overlap with the backward pass, in torch."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from suite.comm.contract import Channel
from suite.comm.reduce.torch import Reduce, Tree
from suite.comm.schedules._base.torch import Schedule
from suite.comm.schedules._base.torch_background import Background
from suite.contract import Parcel


@dataclass(eq=False)
class Waiting:
    """A bucket of gradients or a stack of statistics that is sent when it is complete.

    Attributes:
        send: sends it, and returns the means by name.
        reads: returns the tensors of the backward pass that `send` uses.
        into: where the means are stored.
        place: index of its first parameter; backward reaches the last parameter first.
        missing: names of its parts that are not computed yet.
    """

    send: Callable[[], Tree]
    reads: Callable[[], list[Tensor]]
    into: Tree
    place: int
    missing: set[str]


class Overlap(Schedule):
    """Hooks report complete gradients and statistics, and one thread sends them in a fixed order."""

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        super().__init__(reduce, named)
        self.buckets = reduce.buckets(self.named) if reduce.world > 1 else []
        self.place = {name: number for number, name in enumerate(self.named)}
        self.queue: list[Waiting] = []
        self.gradients: dict[str, Waiting] = {}  # the bucket of each parameter, during a pass
        self.rows: dict[str, Waiting] = {}
        self.statistics: Tree = {}
        self.means: Tree = {}
        self.background = Background(next((value.device for value in self.named.values()), torch.device("cpu")))
        for name in (member for _, _, members in self.buckets for member in members):
            self.named[name].register_post_accumulate_grad_hook(functools.partial(self._arrived, name))

    @contextlib.contextmanager
    def watch(self, weight: Tensor, *, parcels: Mapping[str, Parcel], gradients: bool = True) -> Iterator[None]:
        """Send what backward has completed, and at its end wait for all of it."""
        if self.reduce.world == 1:
            yield
            return
        self.weight, self.sent = weight, list[tuple[Tree, Future[Tree]]]()
        for name, parcel in parcels.items():
            send, reads = functools.partial(self._to_owners, name, parcel), functools.partial(self._rows, parcel)
            place = self.place[parcel.last]
            self.rows |= dict.fromkeys(parcel.rows, Waiting(send, reads, self.reduce.early, place, set(parcel.rows)))
        for bucket, channel, members in self.buckets if gradients else []:
            place = min(self.place[name] for name in members)
            send = functools.partial(self._mean, bucket, channel, members)
            reads = functools.partial(self._reads, members)
            self.gradients |= dict.fromkeys(members, Waiting(send, reads, self.means, place, set(members)))
        every = dict.fromkeys(
            [*self.rows.values(), *self.gradients.values()]
        )  # statistics before the gradient of the same layer
        self.queue = sorted(every, key=lambda waiting: -waiting.place)
        try:
            yield
            absent = {waiting for waiting in self.rows.values() if waiting.missing}  # `absorb` sends what is there
            self.queue = [waiting for waiting in self.queue if waiting not in absent]
            for waiting in self.queue:
                waiting.missing.clear()
            self._send()
            for into, future in self.sent:
                into |= self.background.collect(future)
        finally:
            self.queue, self.gradients, self.rows, self.statistics = [], {}, {}, {}

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """Return the means that were taken during the pass."""
        if self.reduce.world == 1:
            return super().mean(sums, weight)
        means = {name: self.means[name] for name in sums}
        self.means.clear()
        return means

    def observed(self, name: str, value: Tensor) -> None:
        """Note a complete statistic; one that no parcel names is sent by `absorb`."""
        if name in self.rows:
            self.statistics[name] = value
            self.rows[name].missing.discard(name)
            self._send()

    def _arrived(self, name: str, parameter: Tensor) -> None:
        if name in self.gradients:
            self.gradients[name].missing.discard(name)
            self._send()

    def _send(self) -> None:
        while self.queue and not self.queue[0].missing:
            waiting = self.queue.pop(0)
            self.sent.append((waiting.into, self.background.submit(waiting.send, waiting.reads())))

    def _sums(self, members: list[str]) -> list[Tensor]:
        return [gradient for name in members if (gradient := self.named[name].grad) is not None]

    def _reads(self, members: list[str]) -> list[Tensor]:
        return [*self._sums(members), self.weight]

    def _rows(self, parcel: Parcel) -> list[Tensor]:
        return [self.statistics[row] for row in parcel.rows]

    @torch.no_grad()
    def _mean(self, bucket: str, channel: Channel, members: list[str]) -> Tree:
        sums = self._sums(members)
        torch._foreach_div_(sums, self.weight)
        return self.reduce.bucket(f"{self.name}/{bucket}", channel, dict(zip(members, sums, strict=True)))

    @torch.no_grad()
    def _to_owners(self, name: str, parcel: Parcel) -> Tree:
        return {name: self.reduce.to_owners(name, self._rows(parcel), parcel.owners, symmetric=True)}


make = Overlap
