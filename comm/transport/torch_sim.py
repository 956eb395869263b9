"""Many ranks in one process, in torch: a thread each, which meet at every collective. For tests and studies of error.

The codecs, algorithms and topologies are the ones that run over a network; only the bytes stay in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from suite.comm.transport import Ledger
from suite.comm.transport.torch import Arriving, Transport


class Meeting:
    """Where the ranks of one group lay down what they send. A rank that fails lets the others fail too."""

    def __init__(self, world: int):
        self.slots: list[Any] = [None] * world
        self.barrier = threading.Barrier(world)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        self.slots[rank] = value
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class Simulated(Transport):
    """One simulated rank's transport. Values are handed over as copies, as a network would."""

    inner: Simulated
    outer: Simulated

    def __init__(self, rank: int, meeting: Meeting, ledger: Ledger, level: str = "flat"):
        self.rank, self.world, self.meeting = rank, len(meeting.slots), meeting
        self.ledger, self.level = ledger, level

    def _meet(self, operation: str, name: str, value: Tensor) -> list[Tensor]:
        self._count(operation, name, value)
        return self.meeting.exchange(self.rank, value.clone())

    def all_reduce(self, name: str, value: Tensor) -> Tensor:
        """The sum in rank order, in the array's own type, and in its place, as over a network."""
        rows = self._meet("all_reduce", name, value)
        value.copy_(rows[0])
        for row in rows[1:]:
            value += row
        return value

    def all_to_all(self, name: str, value: Tensor) -> Arriving:
        """Row r of (world, …) goes to rank r; the rows that came back, in rank order."""
        return Arriving(torch.stack([rows[self.rank] for rows in self._meet("all_to_all", name, value)]))

    def all_gather(self, name: str, value: Tensor) -> Arriving:
        """Every rank's (k, …) rows one after another: (world · k, …)."""
        return Arriving(torch.cat(self._meet("all_gather", name, value)))

    def shift(self, name: str, value: Tensor) -> Arriving:
        """Send to the next rank; what came from the one before."""
        return Arriving(self._meet("shift", name, value)[self.rank - 1].clone())

    def to_first(self, name: str, value: Tensor) -> Arriving:
        """Every rank's value on rank 0, (world, …); elsewhere only this rank's own row is filled."""
        rows = self._meet("to_first", name, value)
        mine = [row if self.rank in (0, rank) else torch.zeros_like(row) for rank, row in enumerate(rows)]
        return Arriving(torch.stack(mine))

    def broadcast(self, name: str, value: Tensor) -> Arriving:
        """Rank 0's value on all."""
        return Arriving(self._meet("broadcast", name, value)[0].clone())


def simulate(body: Callable[[Simulated], Any], world: int, locals: int | None = None) -> list[Any]:
    """What `body(transport)` returns on each rank.

    Args:
        body: what a rank does.
        world: number of ranks.
        locals: ranks of one host, where hosts are told apart.
    """
    whole = Meeting(world)
    hosts = [Meeting(locals) for _ in range(world // locals)] if locals else []
    across = [Meeting(world // locals) for _ in range(locals)] if locals else []

    def one(rank: int) -> Any:
        made = Simulated(rank, whole, Ledger())
        if locals:
            host, local = divmod(rank, locals)
            made.inner = Simulated(local, hosts[host], made.ledger, "inner")
            made.outer = Simulated(host, across[local], made.ledger, "outer")
        try:
            return body(made)
        except BaseException:
            for meeting in (whole, *hosts, *across):
                meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(one, rank) for rank in range(world)]]
