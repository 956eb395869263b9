"""Event log: one line of JSON per event, written at once; on resuming, it is truncated to its checkpoint."""

import errno
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from suite import disk
from suite.contract import Event, UserError
from suite.record.record import format_event


class Log:
    """Appends events to `events.jsonl`.

    Args:
        path: of the log.
        keep: the log's `state` in the checkpoint from which the run resumes; later events are removed from the file.

    Raises:
        WriteError: if the log cannot be written, here and in every method.
        UserError: if the beginning of the file differs from the log at the checkpoint.
    """

    def __init__(self, path: Path, keep: Mapping[str, int] | None = None):
        self.path, self._size, self._sum = path, 0, 0
        with disk.report_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if keep:
                self._size, self._sum = self._verified(keep)
            os.ftruncate(self._descriptor, self._size)

    def _verified(self, keep: Mapping[str, int]) -> tuple[int, int]:
        """Check the beginning of the file against a checkpoint; return its size and checksum."""
        size, so_far = os.fstat(self._descriptor).st_size, 0
        with self.path.open("rb") as file:
            left = keep["bytes"]
            while left and (data := file.read(min(left, 2**20))):
                so_far, left = zlib.crc32(data, so_far), left - len(data)
        if left or so_far != keep["crc32"]:
            fault = f"has {size:,} bytes" if left else "has other events"
            raise UserError(
                f"{self.path}: {fault}, but its checkpoint was written after {keep['bytes']:,} bytes; restore the log, "
                f"or delete the checkpoint ({self.path.parent / 'checkpoint'}) to start the run again"
            )
        return keep["bytes"], so_far

    def __call__(self, event: Event) -> None:
        """Append one event."""
        line = format_event(event).encode() + b"\n"
        with disk.report_errors(self.path):
            disk.write_all(self._descriptor, line)
        self._size, self._sum = self._size + len(line), zlib.crc32(line, self._sum)

    def state(self) -> dict[str, int]:
        """Flush the log to the device; return its size and checksum for a checkpoint.

        Raises:
            WriteError: also if the file has been removed, for example with the run's directory.
        """
        with disk.report_errors(self.path):
            os.fsync(self._descriptor)
            if not self._is_there():
                raise FileNotFoundError(errno.ENOENT, "gone", str(self.path))
        return {"bytes": self._size, "crc32": self._sum}

    def _is_there(self) -> bool:
        """Return whether the path still names the open file."""
        return os.path.samestat(os.fstat(self._descriptor), self.path.stat())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
