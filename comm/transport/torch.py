"""Collectives of a torch process group: gloo between CPUs, NCCL between GPUs.

Between CPUs, rows are exchanged by messages, and receives are posted before sends. gloo signals that a receiver is
ready over the connection that also carries data in that direction: if a rank has begun to send, the signal waits behind
its data, and two ranks send one after the other. This happens in every second `all_to_all_single` on a slow link (20 ms
instead of 10, 1 Gbit/s).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.comm.transport import Ledger, make_entry
from suite.comm.transport.torch_checksums import Checksums

# renamed in torch 2.13
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class Arriving:
    """A collective that may not have finished.

    Attributes:
        value: the result; complete after `wait`.
        works: torch's handles of the messages.
        kept: what this rank sends, referenced so that its memory is not reused before it has been sent.
        counted: called once with the complete value.
    """

    value: Tensor
    works: Sequence[Any] = ()
    kept: Tensor | None = None
    counted: Callable[[Tensor], None] | None = None

    def wait(self) -> Tensor:
        """Wait for the collective and return its result."""
        for work in self.works:
            if work:
                work.wait()
        if self.counted:
            self.counted(self.value)
            self.counted = None
        return self.value


class Transport:
    """Collectives of a process group, each counted in the ledger. Every rank must call them in the same order.

    `all_reduce` waits for its result; all others return a handle, so that several can run at once. `checksums` covers
    the rows that a rank may add to its own, by sender and receiver: after a sum, nothing else shows that a row was
    changed in transit. A change in gathered or broadcast values shows in the weights, which then differ between ranks.

    Args:
        ledger: counts the bytes.
        locals: ranks of one host, for `inner` and `outer`; None with one level.
        deadline: seconds that a collective among some ranks may take; None: torch's default, half an hour with gloo.
    """

    level = "flat"
    xp = torch
    inner: Transport
    outer: Transport
    before: Callable[[], None] | None = None  # called before each collective; a schedule sets it to keep their order

    def __init__(self, ledger: Ledger, locals: int | None = None, deadline: float | None = None):
        self.ledger, self.group, self.locals, self.deadline = ledger, None, locals, deadline
        alone = not dist.is_initialized()
        self.rank, self.world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        self.checksums = Checksums(self.world)
        if locals:
            self.inner, self.outer = self._levels([list(range(self.world))], locals)

    def among(self, groups: list[list[int]], locals: int | None = None) -> Transport:
        """Return the transport of this rank's group. All ranks call it.

        Args:
            groups: of ranks; each rank is in one of them.
            locals: ranks of one host in the whole run, for `inner` and `outer`. Each of a group's hosts must have
                equally many of its ranks.
        """
        part = self._part("flat", groups)
        part.locals, part.deadline = locals, self.deadline
        if locals:
            part.inner, part.outer = self._levels(groups, locals)
        return part

    def _levels(self, groups: list[list[int]], locals: int) -> tuple[Transport, Transport]:
        """Return the transports of this rank's group, between the ranks of one host and between hosts."""
        hosts = [[list(host) for _, host in itertools.groupby(ranks, lambda rank: rank // locals)] for ranks in groups]
        inner = [host for group in hosts for host in group]
        outer = [list(level) for group in hosts for level in zip(*group, strict=True)]
        return self._part("inner", inner), self._part("outer", outer)

    def _group(self, ranks: list[int] | None = None) -> Any:
        """A group of some ranks, or of all; torch does not give a new group the deadline of the default group."""
        return dist.new_group(ranks, timeout=timedelta(seconds=self.deadline) if self.deadline else None)

    def _part(self, level: str, groups: list[list[int]]) -> Transport:
        """Make the transport of this rank's group among some groups; torch requires every rank to create them all."""
        part = object.__new__(Transport)
        created = [(ranks, self._group(ranks) if self.world > 1 else None) for ranks in groups]
        [(ranks, group)] = [(ranks, group) for ranks, group in created if self.rank in ranks]
        part.ledger, part.group, part.level, part.checksums = self.ledger, group, level, self.checksums
        part.rank, part.world = ranks.index(self.rank), len(ranks)
        return part

    def _count(self, operation: str, name: str, value: Tensor) -> None:
        if self.before:
            self.before()
        dtype, size = str(value.dtype).removeprefix("torch."), value.numel() * value.element_size()
        self.ledger.add([make_entry(operation, name, dtype, size, self.world, self.level)])

    def _member(self, rank: int) -> int:
        """Return the number in the whole world of a rank of this group."""
        return dist.get_global_rank(self.group, rank) if self.group else rank

    @property
    def leaders(self) -> Transport | None:
        """Transport between the first ranks of all hosts; None on other ranks."""
        return self.outer if self.inner.rank == 0 else None

    def averaged(self, total: Tensor) -> Tensor:
        """A sum over ranks divided by their number, in place."""
        return total.div_(self.world)

    def chunks(self, values: Tensor) -> Tensor:
        """(n,) values as one row for each rank, (world, k). The last values are repeated where n is no multiple.

        Zeros would enter the means and percentiles that some codecs take.
        """
        missing = -len(values) % self.world
        more = values[len(values) - missing :] if missing <= len(values) else values.new_zeros(missing)
        return (torch.cat([values, more]) if missing else values).view(self.world, -1)

    def row(self, rows: Tensor, behind: int = 0) -> Tensor:
        """Row (rank - behind) modulo world of (world, k); (k,)."""
        return rows[(self.rank - behind) % self.world]

    @functools.cached_property
    def _members(self) -> list[int]:
        return [self._member(rank) for rank in range(self.world)]

    def _received(self, ranks: Sequence[int]) -> Callable[[Tensor], None]:
        """A function that adds received rows (n, …), one from each of some ranks of the world, to the checksums."""
        return functools.partial(self.checksums.receive, ranks)

    def all_reduce(self, name: str, value: Tensor) -> Tensor:
        """Return the sum over ranks, in the array's own type; `value` is overwritten."""
        self._count("all_reduce", name, value)
        total = value.contiguous()
        dist.all_reduce(total, group=self.group)
        return total

    def all_to_all(self, name: str, value: Tensor) -> Arriving:
        """Send row r of (world, …) to rank r; the received rows in rank order, (world, …)."""
        self._count("all_to_all", name, value)
        value, received = value.contiguous(), torch.empty_like(value, memory_format=torch.contiguous_format)
        if value.device.type == "cpu":
            works = self._exchange(list(value), list(received))
        else:
            works = [dist.all_to_all_single(received, value, group=self.group, async_op=True)]
        self.checksums.send(self._members, value)
        return Arriving(received, works, value, self._received(self._members))

    def all_gather(self, name: str, value: Tensor) -> Arriving:
        """Every rank's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        value, gathered = value.contiguous(), value.new_empty((self.world * value.shape[0], *value.shape[1:]))
        if value.device.type == "cpu":
            works = self._exchange([value] * self.world, list(gathered.view(self.world, *value.shape)))
        else:
            works = [_all_gather(gathered, value, group=self.group, async_op=True)]
        return Arriving(gathered, works, value)

    def _exchange(self, sends: list[Tensor], received: list[Tensor]) -> list[Any]:
        """Send one array to each rank and receive one from each, all at once."""
        received[self.rank].copy_(sends[self.rank])
        if not sends[self.rank].numel():
            return []
        others = [(self.rank + step) % self.world for step in range(1, self.world)]
        works = [dist.irecv(received[rank], self._member(rank), self.group) for rank in reversed(others)]
        return works + [dist.isend(sends[rank], self._member(rank), self.group) for rank in others]

    def shift(self, name: str, value: Tensor) -> Arriving:
        """Send to the next rank; what the previous rank sent."""
        self._count("shift", name, value)
        received = torch.empty_like(value, memory_format=torch.contiguous_format)
        after, before = self._member((self.rank + 1) % self.world), self._member((self.rank - 1) % self.world)
        value = value.contiguous()
        messages = (dist.irecv, received, before), (dist.isend, value, after)
        works = dist.batch_isend_irecv([dist.P2POp(*message, self.group) for message in messages])
        self.checksums.send([after], value[None])
        return Arriving(received, works, value, lambda value: self.checksums.receive([before], value[None]))

    def to_first(self, name: str, value: Tensor) -> Arriving:
        """Every rank's value on rank 0, (world, …); on other ranks, only their own row is filled."""
        self._count("to_first", name, value)
        gathered = value.new_zeros((self.world, *value.shape))
        gathered[self.rank] = value
        rows: Any = list(gathered) if self.rank == 0 else None
        value = value.contiguous()
        work = dist.gather(value, rows, dst=self._member(0), group=self.group, async_op=True)
        self.checksums.send([self._member(0)], value[None])
        return Arriving(gathered, [work], value, self._received(self._members) if self.rank == 0 else None)

    def deliver(self, name: str, value: Tensor, source: int) -> Arriving:
        """Rank `source`'s value on rank 0; other ranks get their own value back."""
        self._count("to_first", name, value)
        value, works = value.contiguous(), []
        received = torch.empty_like(value) if self.rank == 0 < source else value
        if self.rank == 0 < source:
            works = [dist.irecv(received, self._member(source), self.group)]
        elif self.rank == source > 0:
            works = [dist.isend(value, self._member(0), self.group)]
        return Arriving(received, works, value)

    def broadcast(self, name: str, value: Tensor) -> Arriving:
        """Rank 0's value on all ranks."""
        self._count("broadcast", name, value)
        copy = value.contiguous().clone()
        return Arriving(copy, [dist.broadcast(copy, src=self._member(0), group=self.group, async_op=True)])
