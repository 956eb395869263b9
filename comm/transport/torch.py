"""Bytes over a torch process group: gloo between CPUs, NCCL between GPUs.

Between CPUs rows are exchanged by messages that are received first and sent afterwards. gloo tells a sender that it may
begin over the same connection that carries the data: once a rank's own data are on their way, that word waits behind
them, and two ranks send one after another. So does every second `all_to_all_single` on a slow link (20 ms in the place
of 10, 1 Gbit/s).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.comm.transport import Ledger, entry

# renamed in torch 2.13
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class Arriving:
    """What other ranks are sending.

    Attributes:
        value: of which perhaps not all has come.
        works: what is still going on.
        kept: what this rank sends, which must stay until it is gone.
    """

    value: Tensor
    works: Sequence[Any] = ()
    kept: Tensor | None = None

    def wait(self) -> Tensor:
        """The value, once all of it has come."""
        for work in self.works:
            if work:
                work.wait()
        return self.value


class Transport:
    """Collectives of a process group, each one counted. Every rank must call them in the same order.

    An all-reduce is waited for; all others are started, so that several may be on their way.

    Args:
        ledger: where they are counted.
        locals: ranks of one host, for `inner` and `outer`; None where hosts are not told apart.
        deadline: seconds that a collective among some ranks may take; None: what torch has, half an hour with gloo.
    """

    level = "flat"
    inner: Transport
    outer: Transport

    def __init__(self, ledger: Ledger, locals: int | None = None, deadline: float | None = None):
        self.ledger, self.group, self.locals, self.deadline = ledger, None, locals, deadline
        alone = not dist.is_initialized()
        self.rank, self.world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        if locals:
            hosts = range(self.world // locals)
            inner = [[host * locals + local for local in range(locals)] for host in hosts]
            outer = [[host * locals + local for host in hosts] for local in range(locals)]
            self.inner, self.outer = self._part("inner", inner), self._part("outer", outer)

    def apart(self) -> Transport:
        """The same ranks in groups of their own, for another thread: in one group all ranks must keep one order."""
        other = Transport(self.ledger, self.locals, self.deadline)
        if self.world > 1:
            other.group = self._group()
        return other

    def _group(self, ranks: list[int] | None = None) -> Any:
        """Some ranks, or all once more; torch does not give a group the deadline of the whole."""
        return dist.new_group(ranks, timeout=timedelta(seconds=self.deadline) if self.deadline else None)

    def _part(self, level: str, groups: list[list[int]]) -> Transport:
        """This rank's among some groups; every rank makes all of them, as torch wants it."""
        part = object.__new__(Transport)
        made = [(ranks, self._group(ranks) if self.world > 1 else None) for ranks in groups]
        [(ranks, group)] = [(ranks, group) for ranks, group in made if self.rank in ranks]
        part.ledger, part.group, part.level = self.ledger, group, level
        part.rank, part.world = ranks.index(self.rank), len(ranks)
        return part

    def _count(self, operation: str, name: str, value: Tensor) -> None:
        dtype, size = str(value.dtype).removeprefix("torch."), value.numel() * value.element_size()
        self.ledger.add([entry(operation, name, dtype, size, self.world, self.level)])

    def _member(self, rank: int) -> int:
        """A rank of this group as the whole world numbers it."""
        return dist.get_global_rank(self.group, rank) if self.group else rank

    def all_reduce(self, name: str, value: Tensor) -> Tensor:
        """The sum over ranks, in the array's own type, and in its place: `value` is overwritten."""
        self._count("all_reduce", name, value)
        total = value.contiguous()
        dist.all_reduce(total, group=self.group)
        return total

    def all_to_all(self, name: str, value: Tensor) -> Arriving:
        """Row r of (world, …) goes to rank r; the rows that came back, in rank order."""
        self._count("all_to_all", name, value)
        value, received = value.contiguous(), torch.empty_like(value, memory_format=torch.contiguous_format)
        if value.device.type == "cpu":
            works = self._exchange(list(value), list(received))
        else:
            works = [dist.all_to_all_single(received, value, group=self.group, async_op=True)]
        return Arriving(received, works, value)

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
        """Send one array to each rank and receive one from each; nobody waits for this rank's turn."""
        received[self.rank].copy_(sends[self.rank])
        if not sends[self.rank].numel():
            return []
        others = [(self.rank + step) % self.world for step in range(1, self.world)]
        works = [dist.irecv(received[rank], self._member(rank), self.group) for rank in reversed(others)]
        return works + [dist.isend(sends[rank], self._member(rank), self.group) for rank in others]

    def shift(self, name: str, value: Tensor) -> Arriving:
        """Send to the next rank; what came from the one before."""
        self._count("shift", name, value)
        received = torch.empty_like(value, memory_format=torch.contiguous_format)
        after, before = self._member((self.rank + 1) % self.world), self._member((self.rank - 1) % self.world)
        value = value.contiguous()
        both = (dist.irecv, received, before), (dist.isend, value, after)
        works = dist.batch_isend_irecv([dist.P2POp(*each, self.group) for each in both])
        return Arriving(received, works, value)

    def to_first(self, name: str, value: Tensor) -> Arriving:
        """Every rank's value on rank 0, (world, …); elsewhere only this rank's own row is filled."""
        self._count("to_first", name, value)
        gathered = value.new_zeros((self.world, *value.shape))
        gathered[self.rank] = value
        rows: Any = list(gathered) if self.rank == 0 else None
        value = value.contiguous()
        work = dist.gather(value, rows, dst=self._member(0), group=self.group, async_op=True)
        return Arriving(gathered, [work], value)

    def broadcast(self, name: str, value: Tensor) -> Arriving:
        """Rank 0's value on all."""
        self._count("broadcast", name, value)
        given = value.contiguous().clone()
        return Arriving(given, [dist.broadcast(given, src=self._member(0), group=self.group, async_op=True)])
