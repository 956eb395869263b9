"""Many ranks in one process, in torch: each rank is a thread, and the threads exchange tensors in memory.

Codecs, algorithms and topologies are those of a real run; only the transport is replaced.
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
    """Exchanges values between the threads of one group of ranks. If a rank fails, the others fail too."""

    def __init__(self, world: int):
        self.slots: list[Any] = [None] * world
        self.barrier = threading.Barrier(world)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        self.slots[rank] = value
        self.barrier.wait()
        values = list(self.slots)
        self.barrier.wait()
        return values


class Simulated(Transport):
    """Transport of one simulated rank. Every rank receives copies, as over a network."""

    inner: Simulated
    outer: Simulated

    def __init__(self, rank: int, meeting: Meeting, ledger: Ledger, level: str = "flat"):
        self.rank, self.world, self.meeting = rank, len(meeting.slots), meeting
        self.ledger, self.level = ledger, level

    def _meet(self, operation: str, name: str, value: Tensor) -> list[Tensor]:
        self._count(operation, name, value)
        return self.meeting.exchange(self.rank, value.clone())

    def all_reduce(self, name: str, value: Tensor) -> Tensor:
        """Sum the ranks' arrays in rank order, in the array's own type and in its place, as over a network."""
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
    """Run `body(transport)` on each rank and return the results.

    Args:
        body: what a rank does.
        world: number of ranks.
        locals: ranks of one host; None for one level.
    """
    whole = Meeting(world)
    hosts = [Meeting(locals) for _ in range(world // locals)] if locals else []
    across = [Meeting(world // locals) for _ in range(locals)] if locals else []

    def one(rank: int) -> Any:
        transport = Simulated(rank, whole, Ledger())
        if locals:
            host, local = divmod(rank, locals)
            transport.inner = Simulated(local, hosts[host], transport.ledger, "inner")
            transport.outer = Simulated(host, across[local], transport.ledger, "outer")
        try:
            return body(transport)
        except BaseException:
            for meeting in (whole, *hosts, *across):
                meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(one, rank) for rank in range(world)]]
