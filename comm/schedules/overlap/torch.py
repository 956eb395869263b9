"""During the backward pass, in torch."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.reduce.torch import Reduce, Tree
from suite.comm.schedules._base.torch import Schedule
from suite.contract import Parcel


@dataclass(eq=False)
class Waiting:
    """What is sent together: how, where its answer goes, where its last part stands, and what has not come yet."""

    send: Callable[[], Tree]
    into: Tree
    place: int  # among the parameters, of whose gradients backward makes the last first
    missing: set[str]


class Overlap(Schedule):
    """Hooks tell of gradients and statistics, and one thread sends what is complete, in an order fixed beforehand."""

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        super().__init__(reduce, named)
        self.buckets = reduce.buckets("gradients", self.named) if reduce.world > 1 else []
        self.place = {name: number for number, name in enumerate(self.named)}
        self.queue: list[Waiting] = []
        self.gradients: dict[str, Waiting] = {}  # what each belongs to, while a pass is watched
        self.rows: dict[str, Waiting] = {}
        self.statistics: Tree = {}
        self.found: Tree = {}
        self.thread = ThreadPoolExecutor(1)
        for name in (member for _, _, members in self.buckets for member in members):
            self.named[name].register_post_accumulate_grad_hook(functools.partial(self._arrived, name))

    @contextlib.contextmanager
    def watch(self, weight: Tensor, *, parcels: Mapping[str, Parcel], gradients: bool = True) -> Iterator[None]:
        """Send what backward has completed, and at its end wait until all has come."""
        if self.reduce.world == 1:
            yield
            return
        self.weight, self.sent = weight, list[tuple[Tree, Future[Tree]]]()
        for name, parcel in parcels.items():
            send, place = functools.partial(self._to_owners, name, parcel), self.place[parcel.last]
            self.rows |= dict.fromkeys(parcel.rows, Waiting(send, self.reduce.early, place, set(parcel.rows)))
        for bucket, channel, members in self.buckets if gradients else []:
            place = min(self.place[name] for name in members)
            send = functools.partial(self._mean, bucket, channel, members)
            self.gradients |= dict.fromkeys(members, Waiting(send, self.found, place, set(members)))
        every = dict.fromkeys([*self.rows.values(), *self.gradients.values()])  # a parcel is there before its gradient
        self.queue = sorted(every, key=lambda waiting: -waiting.place)
        try:
            yield
            absent = {waiting for waiting in self.rows.values() if waiting.missing}  # `absorb` sends what there is
            self.queue = [waiting for waiting in self.queue if waiting not in absent]
            for waiting in self.queue:
                waiting.missing.clear()
            self._send()
            for into, future in self.sent:
                into |= future.result()
        finally:
            self.queue, self.gradients, self.rows, self.statistics = [], {}, {}, {}

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """The mean that has been taken."""
        if self.reduce.world == 1:
            return super().mean(sums, weight)
        found = {name: self.found[name] for name in sums}
        self.found.clear()
        return found

    def observed(self, name: str, value: Tensor) -> None:
        """Take over a statistic; what is not to be sent early is none of this schedule's business."""
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
            self.sent.append((waiting.into, self.thread.submit(waiting.send)))

    @torch.no_grad()
    def _mean(self, bucket: str, channel: Channel, members: list[str]) -> Tree:
        sums = [gradient for name in members if (gradient := self.named[name].grad) is not None]
        torch._foreach_div_(sums, self.weight)
        return self.reduce.bucket(f"gradients/{bucket}", channel, dict(zip(members, sums, strict=True)))

    @torch.no_grad()
    def _to_owners(self, name: str, parcel: Parcel) -> Tree:
        values = [self.statistics[row] for row in parcel.rows]
        return {name: self.reduce.to_owners(name, values, parcel.owners, symmetric=True)}


make = Overlap
