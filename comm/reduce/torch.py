"""Reductions over ranks in torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suite.comm.channel import GRADIENTS, Channel, Channels
from suite.comm.codecs._codec import Codec
from suite.comm.coder.torch import Coder, Coders
from suite.comm.layout import places, slots
from suite.comm.layout import torch as layout
from suite.comm.reduce import as_mean
from suite.comm.transport.torch import Transport

Tree = dict[str, Tensor]


class Reduce:
    """Means over ranks, and stacks split among owners.

    Args:
        transport: moves and counts the bytes.
        channels: how what travels.

    Attributes:
        state: residuals by name; each rank has its own, and leaders have some that no other rank has.
        key: (seed, step), for codecs that draw; the engine sets it.
        early: stacks that a schedule has sent to their owners before `to_owners` asks for them, by name.
    """

    def __init__(self, transport: Transport, channels: Channels):
        self.transport, self.channels = transport, channels
        self.state: Tree = {}
        self.key: tuple[int, int] = 0, 0
        self.early: Tree = {}

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.transport.world

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.transport.rank

    def exact(self, values: Tree) -> Tree:
        """The mean of small values over ranks, never compressed."""
        if self.world == 1 or not values:
            return values
        return _cut(self.transport.all_reduce("exact", _flat(values)).div_(self.world), values)

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
        return _cut(channel.topology.mean(name, _flat(values), **self._ways(channel)), values)

    def to_owners(
        self, name: str, stack: Tensor | Sequence[Tensor], owners: tuple[int, ...], *, symmetric: bool = False
    ) -> Tensor:
        """Each owner's rows of the mean over ranks of a (m, …) stack: (k, …), zeros where a rank owns fewer than k.

        Args:
            name: for ledger and residuals.
            stack: the rows, on every rank, as one array or one by one.
            owners: the rank of each row; k is the most that any of them has.
            symmetric: the rows are symmetric matrices (m, n, n), so that triangles may be sent.
        """
        if name in self.early:
            return self.early.pop(name)
        stack = stack if isinstance(stack, Tensor) else torch.stack(list(stack))
        if self.world == 1:
            return stack
        if symmetric and self.channels.symmetric:
            return layout.unpack(self.to_owners(name, layout.pack(stack), owners))
        channel = self.channels.factors
        if as_mean(owners, self.world):
            mean = channel.topology.mean(name, stack.reshape(-1).clone(), **self._ways(channel))
            return self.mine(mean.view(stack.shape), owners)
        rows = _ordered(stack, slots(owners, self.world)).reshape(self.world, -1)
        return channel.topology.to_owners(name, rows, **self._ways(channel)).view(-1, *stack.shape[1:])

    def gather(
        self, name: str, slices: Tensor, owners: tuple[int, ...], *, exact: bool = False, symmetric: bool = False
    ) -> Tensor:
        """Every owner's rows put together again: (k, …) on each rank to (m, …) on all; the twin of `to_owners`.

        As values, in the run's communication mode, or `exact`: as they are, of any type.
        """
        if self.world == 1:
            return slices
        if symmetric and self.channels.symmetric and not exact:
            return layout.unpack(self.gather(name, layout.pack(slices), owners))
        channel = self.channels.factors
        own = [row for row, owner in enumerate(owners) if owner == self.transport.rank]
        if exact:
            found = self.transport.all_gather(name, slices).wait()
        elif as_mean(owners, self.world):
            whole = slices.new_zeros(len(owners), *slices.shape[1:])
            whole[own] = slices[: len(own)]
            mean = channel.topology.mean(name, whole.reshape(-1), **self._ways(channel))
            return (mean * self.world).view(whole.shape)
        else:  # what nobody owns must not enter what a codec finds out about its values
            clean = _ordered(slices, [*range(len(own)), *[-1] * (len(slices) - len(own))])
            found = channel.topology.gather(name, clean.reshape(-1), **self._ways(channel))
            found = found.reshape(-1, *slices.shape[1:])
        return _ordered(found, places(owners, self.world))

    def mine(self, stack: Tensor, owners: tuple[int, ...]) -> Tensor:
        """The rows (k, …) that this rank owns of a stack (m, …) that all ranks hold; nothing is sent."""
        if self.world == 1:
            return stack
        order = slots(owners, self.world)
        share = len(order) // self.world
        return _ordered(stack, order[self.transport.rank * share : (self.transport.rank + 1) * share])

    def _ways(self, channel: Channel) -> dict[str, Any]:
        """What a topology needs beside the values."""

        def coder(name: str, codec: Codec, whole: bool = False) -> Coder:
            state, most = self.state if channel.feedback else None, float("inf") if whole else channel.piece_bytes
            return Coder(name, codec, state, self.key, self.transport.rank, most)

        coders: Coders = coder
        return {"channel": channel, "coders": coders, "transport": self.transport}


def _ordered(stack: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows of a stack, zeros for -1; nothing is copied where they are its first ones."""
    if len(rows) <= len(stack) and all(map(int.__eq__, rows, range(len(rows)))):
        return stack[: len(rows)]
    found = stack.new_zeros(len(rows), *stack.shape[1:])
    for to, row in enumerate(rows):
        if row >= 0:
            found[to] = stack[row]
    return found


def _flat(values: Tree) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values.values()])


def _cut(flat: Tensor, like: Tree) -> Tree:
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
