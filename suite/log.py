"""The event log: one JSON line an event, flushed at once, cut back to its checkpoint when a run goes on."""

from pathlib import Path

from suite.contract import Event
from suite.record import as_line


class Log:
    """A listener that appends events to `events.jsonl`.

    Args:
        path: the log.
        keep: bytes of an earlier segment that belong to the checkpoint; what follows them is cut off.
    """

    def __init__(self, path: Path, keep: int = 0):
        self.path = path
        path.touch()
        with path.open("r+b") as file:
            file.truncate(keep)
        self._file = path.open("ab")

    def __call__(self, event: Event) -> None:
        """Append one event."""
        self._file.write(as_line(event).encode() + b"\n")
        self._file.flush()

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
