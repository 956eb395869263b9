"""During the backward pass, in torch."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from suite.comm.channel import Channel
from suite.comm.reduce.torch import Reduce, Tree
from suite.comm.schedules._base.torch import Schedule


class Overlap(Schedule):
    """Hooks count gradients, and one thread sends each bucket that is complete, in order."""

    def __init__(self, reduce: Reduce, named: Mapping[str, Tensor]):
        super().__init__(reduce, named)
        self.buckets = reduce.buckets("gradients", self.named) if reduce.world > 1 else []
        self.missing: list[int] | None = None  # gradients that each bucket waits for; None outside of `watch`
        self.sent: list[Future[Tree]] = []
        self.thread = ThreadPoolExecutor(1)
        for number, (_, _, members) in enumerate(self.buckets):
            for name in members:
                self.named[name].register_post_accumulate_grad_hook(functools.partial(self._arrived, number))

    @contextlib.contextmanager
    def watch(self, weight: Tensor) -> Iterator[None]:
        """Send buckets as they fill."""
        self.weight, self.sent = weight, []
        self.missing = [len(members) for _, _, members in self.buckets]
        try:
            yield
        finally:
            self.missing = None

    def mean(self, sums: Tree, weight: Tensor) -> Tree:
        """Send what no gradient has come for, and wait."""
        if self.reduce.world == 1:
            return super().mean(sums, weight)
        while len(self.sent) < len(self.buckets):
            self._send(sums)
        found: Tree = {}
        for future in self.sent:
            found |= future.result()
        return {name: found[name] for name in sums}

    def _arrived(self, number: int, parameter: Tensor) -> None:
        if self.missing is None:
            return
        self.missing[number] -= 1
        while len(self.sent) < len(self.missing) and not self.missing[len(self.sent)]:
            self._send({name: _gradient(self.named[name]) for name in self.buckets[len(self.sent)][2]})

    def _send(self, sums: Tree) -> None:
        bucket, channel, members = self.buckets[len(self.sent)]
        self.sent.append(self.thread.submit(self._mean, bucket, channel, {name: sums[name] for name in members}))

    @torch.no_grad()
    def _mean(self, bucket: str, channel: Channel, sums: Tree) -> Tree:
        values = dict(zip(sums, torch._foreach_div(list(sums.values()), self.weight), strict=True))
        return self.reduce.bucket(f"gradients/{bucket}", channel, values)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


make = Overlap
