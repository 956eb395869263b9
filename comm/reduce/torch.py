"""Reductions over ranks in torch."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.contract import Channel
from suite.comm.encoder.torch import Encoder
from suite.comm.layout import list_slots, locate_parts
from suite.comm.reduce import as_mean
from suite.comm.transport.torch import Transport

Tree = dict[str, Tensor]


class Reduce:
    """Implements `suite.contract.Reduce`.

    Args:
        transport: sends the bytes and counts them.
        channels: of the run.

    Attributes:
        state: this rank's residuals by name; the names may differ between ranks.
        key: (seed, step), for codecs that use random numbers; the engine sets it.
        early: results of `to_owners` by name, of stacks that a schedule has already sent.
    """

    def __init__(self, transport: Transport, channels: Channels):
        self.transport, self.channels = transport, channels
        self.state: Tree = {}
        self.key: tuple[int, int] = 0, 0
        self.early: Tree = {}
        self.sums: Tree = {}  # arrays of `make_sums` that are not sent yet, by their first parameter

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.transport.world

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.transport.rank

    def exact(self, values: Tree) -> Tree:
        """Return the mean over ranks of small values, never compressed."""
        if self.world == 1 or not values:
            return values
        return _cut(self.transport.averaged(self.transport.all_reduce("exact", _flat(values))), values)

    def mean(self, name: str, values: Tree, *, gradients: bool = False) -> Tree:
        """Return the mean over ranks, compressed; `gradients`: the values are gradients, by parameter."""
        if self.world == 1:
            return values
        if not gradients:
            return self.bucket(f"{name}/all", self.channels.factors, values)
        means: Tree = {}
        for bucket, channel, members in self.buckets(values):
            means |= self.bucket(f"{name}/{bucket}", channel, {member: values[member] for member in members})
        return {member: means[member] for member in values}

    def buckets(self, gradients: Tree) -> list[tuple[str, Channel, list[str]]]:
        """Which gradients are sent together, in order: (name of the bucket, its channel, names of the parameters)."""
        return list(self.channels.buckets({name: value.nbytes for name, value in gradients.items()}))

    def make_sums(self, like: Tree) -> Tree:
        """Return zeros for sums of gradients, which their mean overwrites; what is sent together lies in one array."""
        sums: Tree = {}
        for _, _, members in self.buckets(like):
            first = members[0]
            self.sums[first] = like[first].new_zeros(sum(like[member].numel() for member in members))
            sums |= _cut(self.sums[first], {member: like[member] for member in members})
        return sums

    def bucket(self, name: str, channel: Channel, values: Tree) -> Tree:
        """Return the mean over ranks of values that are sent together."""
        first, part = next(iter(values.items()))
        made = first in self.sums and part._base is self.sums[first]
        flat = self.sums.pop(first) if made else _flat(values)
        return _cut(channel.topology.mean(name, flat, **self._parts(channel)), values)

    def code(self, values: Tree) -> None:
        """Encode and decode gradients bucket by bucket, to measure the time; nothing is sent."""
        for name, channel, members in self.buckets(values):
            row = torch.cat([values[member].reshape(-1) for member in members])[None]
            encoder = Encoder(f"trial/{name}", channel.codec, None, self.key, 0)
            encoder.decode(encoder.encode("", row), row[0])

    def to_owners(
        self, name: str, stack: Tensor | Sequence[Tensor], owners: tuple[int, ...], *, symmetric: bool = False
    ) -> Tensor:
        """Return this rank's rows of the mean over ranks of a stack, (k, …); zeros where it owns fewer than k."""
        if name in self.early:
            return self.early.pop(name)
        stack = stack if isinstance(stack, Tensor) else torch.stack(list(stack))
        if self.world == 1:
            return stack
        if symmetric and self.channels.symmetric:
            return unpack_triangles(self.to_owners(name, pack_triangles(stack), owners))
        channel = self.channels.factors
        if as_mean(owners, self.world):
            mean = channel.topology.mean(name, stack.reshape(-1).clone(), **self._parts(channel))
            return self.mine(mean.view(stack.shape), owners)
        rows = _ordered(stack, list_slots(owners, self.world)).reshape(self.world, -1)
        return channel.topology.to_owners(name, rows, **self._parts(channel)).view(-1, *stack.shape[1:])

    def gather(
        self, name: str, slices: Tensor, owners: tuple[int, ...], *, exact: bool = False, symmetric: bool = False
    ) -> Tensor:
        """Return the stack (m, …) of all owners' rows (k, …); the inverse of `to_owners`."""
        if self.world == 1:
            return slices
        if symmetric and self.channels.symmetric and not exact:
            return unpack_triangles(self.gather(name, pack_triangles(slices), owners))
        channel = self.channels.factors
        own = [row for row, owner in enumerate(owners) if owner == self.transport.rank]
        if exact:
            gathered = self.transport.all_gather(name, slices).wait()
        elif as_mean(owners, self.world):
            whole = slices.new_zeros(len(owners), *slices.shape[1:])
            whole[own] = slices[: len(own)]
            mean = channel.topology.mean(name, whole.reshape(-1), **self._parts(channel))
            return (mean * self.world).view(whole.shape)
        else:  # padding must not enter the statistics that a codec computes of its values
            clean = _ordered(slices, [*range(len(own)), *[-1] * (len(slices) - len(own))])
            gathered = channel.topology.gather(name, clean.reshape(-1), **self._parts(channel))
            gathered = gathered.reshape(-1, *slices.shape[1:])
        return _ordered(gathered, locate_parts(owners, self.world))

    def mine(self, stack: Tensor, owners: tuple[int, ...]) -> Tensor:
        """Return the rows (k, …) that this rank owns of a stack (m, …) which all ranks hold; nothing is sent."""
        if self.world == 1:
            return stack
        order = list_slots(owners, self.world)
        share = len(order) // self.world
        return _ordered(stack, order[self.transport.rank * share : (self.transport.rank + 1) * share])

    def _parts(self, channel: Channel) -> dict[str, Any]:
        """Return the arguments of a topology's functions beside the name and the values."""

        def encoder(name: str, codec: Codec, whole: bool = False) -> Encoder:
            state = self.state if channel.feedback else None
            piece_bytes = float("inf") if whole else channel.piece_bytes
            return Encoder(name, codec, state, self.key, self.transport.rank, piece_bytes)

        return {"channel": channel, "encoders": encoder, "transport": self.transport}


def _ordered(stack: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the given rows of a stack, zeros for -1; the first rows in order are not copied."""
    if len(rows) <= len(stack) and all(map(int.__eq__, rows, range(len(rows)))):
        return stack[: len(rows)]
    ordered = stack.new_zeros(len(rows), *stack.shape[1:])
    for place, row in enumerate(rows):
        if row >= 0:
            ordered[place] = stack[row]
    return ordered


def _flat(values: Tree) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values.values()])


def _cut(flat: Tensor, like: Tree) -> Tree:
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


@functools.lru_cache(maxsize=256)
def _places(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each packed number's index in the flat matrix, and each element's index in the packed array."""
    row, column = torch.tril_indices(n, n, device=device)
    number = torch.arange(len(row), device=device)
    back = torch.empty(n, n, dtype=torch.int64, device=device)
    back[row, column] = back[column, row] = number
    return row * n + column, back.flatten()


def pack_triangles(stack: Tensor) -> Tensor:
    """Symmetric matrices (m, n, n) to their lower triangles (m, n (n + 1) / 2)."""
    return stack.flatten(1)[:, _places(stack.shape[1], stack.device)[0]]


def unpack_triangles(rows: Tensor) -> Tensor:
    """Lower triangles (m, n (n + 1) / 2) to the symmetric matrices (m, n, n)."""
    n = int((2 * rows.shape[1]) ** 0.5)
    return rows[:, _places(n, rows.device)[1]].unflatten(1, (n, n))
