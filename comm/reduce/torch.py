"""Reductions over ranks in torch."""

import torch
from torch import Tensor

from suite.comm.channel import GRADIENTS, Channel, Channels
from suite.comm.codecs._codec import Codec
from suite.comm.coder.torch import Coder, Coders
from suite.comm.layout import torch as layout
from suite.comm.transport.torch import Transport

Tree = dict[str, Tensor]


class Reduce:
    """Means over ranks, and stacks split among owners.

    Args:
        transport: moves and counts the bytes.
        channels: how what travels.

    Attributes:
        state: residuals by name; each rank has its own.
        key: (seed, step), for codecs that draw; the engine sets it.
    """

    def __init__(self, transport: Transport, channels: Channels):
        self.transport, self.channels = transport, channels
        self.state: Tree = {}
        self.key: tuple[int, int] = 0, 0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.transport.world

    def exact(self, values: Tree) -> Tree:
        """The mean of small values over ranks, never compressed."""
        if self.world == 1 or not values:
            return values
        return _cut(self.transport.all_reduce("exact", _flat(values)) / self.world, values)

    def mean(self, name: str, values: Tree) -> Tree:
        """The mean over ranks, in the run's communication mode; `name` begins with "gradients" where they are some."""
        if self.world == 1:
            return values
        found: Tree = {}
        for bucket, channel, members in self.buckets(name, values):
            found |= self.bucket(f"{name}/{bucket}", channel, {member: values[member] for member in members})
        return {member: found[member] for member in values}

    def buckets(self, name: str, values: Tree) -> list[tuple[str, Channel, list[str]]]:
        """Which of the values are sent together, in order: (a name, their channel, their names)."""
        if not name.startswith(GRADIENTS):
            return [("all", self.channels.factors, list(values))]
        return list(self.channels.buckets({n: value.numel() * value.element_size() for n, value in values.items()}))

    def bucket(self, name: str, channel: Channel, values: Tree) -> Tree:
        """The mean over ranks of values that are sent together."""
        mean = channel.topology.mean
        flat = mean(name, _flat(values), channel=channel, coders=self._coders(channel), transport=self.transport)
        return _cut(flat, values)

    def to_owners(self, name: str, stack: Tensor, *, symmetric: bool = False) -> Tensor:
        """Rank r's share, rows [r · k, (r + 1) · k), of the mean over ranks of a (world · k, …) stack.

        Of matrices that are `symmetric`, (world · k, n, n), triangles may be sent.
        """
        if self.world == 1:
            return stack
        if symmetric and self.channels.symmetric:
            return layout.unpack(self.to_owners(name, layout.pack(stack)))
        channel, rows = self.channels.factors, stack.reshape(self.world, -1)
        send = channel.topology.to_owners
        mine = send(name, rows, channel=channel, coders=self._coders(channel), transport=self.transport)
        return mine.view(-1, *stack.shape[1:])

    def gather(self, name: str, slices: Tensor, *, exact: bool = False, symmetric: bool = False) -> Tensor:
        """Every owner's rows put together again: (k, …) on each rank to (world · k, …) on all.

        As values, in the run's communication mode, or `exact`: as they are, of any type. Of matrices that are
        `symmetric`, (k, n, n), triangles may be sent.
        """
        if self.world == 1:
            return slices
        if exact:
            return self.transport.all_gather(name, slices)
        if symmetric and self.channels.symmetric:
            return layout.unpack(self.gather(name, layout.pack(slices)))
        channel = self.channels.factors
        send = channel.topology.gather
        coders = self._coders(channel)
        whole = send(name, slices.reshape(-1), channel=channel, coders=coders, transport=self.transport)
        return whole.view(-1, *slices.shape[1:])

    def mine(self, stack: Tensor) -> Tensor:
        """This rank's rows of a stack that all ranks hold; nothing is sent."""
        return stack.chunk(self.world)[self.transport.rank]

    def _coders(self, channel: Channel) -> Coders:
        def coder(name: str, codec: Codec) -> Coder:
            return Coder(name, codec, self.state if channel.feedback else None, self.key, self.transport.rank)

        return coder


def _flat(values: Tree) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values.values()])


def _cut(flat: Tensor, like: Tree) -> Tree:
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
