"""Transports move bytes and keep the ledger. What a rank sends is counted by the formulas of this file.

An all-reduce is counted as a ring's: each rank sends 2 (W - 1) / W times the array (Patarasuk and Yuan 2009).
Ranks may be grouped by host: rank h · L + l is the l-th of L on host h. `inner` connects the ranks of one host,
`outer` the ranks with the same l on all hosts. What a group of leaders does is counted as the leader's, rank 0.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One collective as one rank sees it."""

    operation: str
    name: str
    dtype: str  # as on the wire
    payload: int  # bytes of this rank's operand
    sent: int  # bytes this rank puts on the wire
    level: str = "flat"  # which ranks took part: "flat" all, "inner" one host's, "outer" one of each host


def entry(operation: str, name: str, dtype: str, payload: int, world: int, level: str = "flat") -> Entry:
    """The bytes one rank sends for a collective over `payload` bytes."""
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
    """Bytes sent by one rank since the run began, by the first word of what was sent and by level."""

    sent: dict[str, int] = field(default_factory=dict)
    payload: dict[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # a schedule may send from its own thread

    def add(self, entries: Iterable[Entry]) -> None:
        """Count some collectives."""
        with self.lock:
            for item in entries:
                name = item.name.partition("/")[0]
                self.sent[name] = self.sent.get(name, 0) + item.sent
                self.payload[name] = self.payload.get(name, 0) + item.payload
                self.levels[item.level] = self.levels.get(item.level, 0) + item.sent

    def facts(self) -> dict[str, Any]:
        """What the result says of it."""
        return {"sent": self.total, "by_name": dict(self.sent), "by_level": dict(self.levels)}

    @property
    def total(self) -> int:
        """All bytes sent."""
        return sum(self.sent.values())
