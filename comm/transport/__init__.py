"""Transports move bytes and keep the ledger. What a rank sends is counted by the formulas of this file.

An all-reduce is counted as a ring's: each rank sends 2 (W - 1) / W times the array (Patarasuk and Yuan 2009).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One collective as one rank sees it."""

    operation: str
    name: str
    dtype: str  # as on the wire
    payload: int  # bytes of this rank's operand
    sent: int  # bytes this rank puts on the wire


def entry(operation: str, name: str, dtype: str, payload: int, world: int) -> Entry:
    """The bytes one rank sends for a collective over `payload` bytes."""
    sent = {
        "all_reduce": 2 * (world - 1) * payload // world,
        "all_to_all": (world - 1) * payload // world,
        "all_gather": (world - 1) * payload,
    }[operation]
    return Entry(operation, name, dtype, payload, sent)


@dataclass
class Ledger:
    """Bytes sent by one rank since the run began, by the name of what was sent."""

    sent: dict[str, int] = field(default_factory=dict)
    payload: dict[str, int] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Count some collectives."""
        for item in entries:
            name = item.name.partition("/")[0]
            self.sent[name] = self.sent.get(name, 0) + item.sent
            self.payload[name] = self.payload.get(name, 0) + item.payload

    @property
    def total(self) -> int:
        """All bytes sent."""
        return sum(self.sent.values())
