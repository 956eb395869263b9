"""Transports send bytes between ranks and count them in the ledger, by the formulas of this file.

An all-reduce is counted as a ring: each rank sends 2 (W - 1) / W times the array (Patarasuk and Yuan 2009).
Ranks may be grouped by host: rank h · L + l is number l of the L ranks on host h. `inner` connects the ranks of one
host, `outer` the ranks with the same l on all hosts. What a group of leaders sends is counted for rank 0, a leader.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One collective, as one rank counts it."""

    operation: str
    name: str
    dtype: str  # as on the wire
    payload: int  # bytes of this rank's operand
    sent: int  # bytes this rank sends
    level: str = "flat"  # which ranks take part: "flat" all, "inner" those of one host, "outer" one of each host


def make_entry(operation: str, name: str, dtype: str, payload: int, world: int, level: str = "flat") -> Entry:
    """Return the ledger's entry for a collective whose operand has `payload` bytes on this rank."""
    sent = {
        "all_reduce": 2 * (world - 1) * payload // world,
        "all_to_all": (world - 1) * payload // world,
        "all_gather": (world - 1) * payload,
        "shift": payload,
        "broadcast": (world - 1) * payload,
        "to_first": 0,
    }[operation]
    return Entry(operation, name, dtype, payload, sent if world > 1 else 0, level)


@dataclass
class Ledger:
    """Bytes sent by one rank since the run began, by level and by the part of the name before the first "/"."""

    sent: dict[str, int] = field(default_factory=dict)
    payload: dict[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    counting: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # a schedule may send from its own thread

    def add(self, entries: Iterable[Entry]) -> None:
        """Count collectives."""
        with self.lock:
            for item in entries if self.counting else ():
                name = item.name.partition("/")[0]
                self.sent[name] = self.sent.get(name, 0) + item.sent
                self.payload[name] = self.payload.get(name, 0) + item.payload
                self.levels[item.level] = self.levels.get(item.level, 0) + item.sent

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside the context."""
        self.counting = False
        try:
            yield
        finally:
            self.counting = True

    def facts(self) -> dict[str, Any]:
        """Return the bytes for the result."""
        return {"sent": self.total, "by_name": dict(self.sent), "by_level": dict(self.levels)}

    @property
    def total(self) -> int:
        """Bytes sent in total."""
        return sum(self.sent.values())
