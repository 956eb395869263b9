"""Standard output and error that cannot fail: what nobody can receive is dropped, and the program goes on.

The reader of a pipe may end (`suite … | head -4`), the disk of a file may be full, the terminal may be gone.
"""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

OUTPUT, ERROR = 1, 2  # descriptors


class Descriptor(io.FileIO):
    """An open descriptor to write to. From the first write that fails, it leads to `os.devnull`.

    Args:
        number: of the descriptor, which stays open.

    Attributes:
        lost: the error of the write that failed; None if none did.
    """

    def __init__(self, number: int):
        super().__init__(number, "w", closefd=False)
        self.lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write a part of `data`, or drop all of it; return the number of bytes. Wait where the reader is slow."""
        try:
            while (written := super().write(data)) is None:  # another program has set O_NONBLOCK, and the pipe is full
                select.select([], [self], [])
            return written
        except OSError as error:
            self.lost = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # also for programs that this one starts later
            os.close(null)
            return memoryview(data).nbytes


@contextmanager
def drop_unwritable() -> Iterator[list[Descriptor]]:
    """Let everything that writes to `sys.stdout` and `sys.stderr` succeed inside the context.

    A character that the encoding lacks becomes a question mark. A descriptor that was closed (`>&-`) leads to
    `os.devnull`, because the next file would get its number. A stream that a caller has replaced stays as it is.

    Yields:
        Standard output and error, as far as they are this process's own; `lost` says what became of them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= ERROR:  # opens the closed ones of 0, 1 and 2
        pass
    os.close(number)
    earlier = sys.stdout, sys.stderr
    descriptors: list[Descriptor] = []
    if earlier[0] is sys.__stdout__:
        descriptors.append(Descriptor(OUTPUT))
        sys.stdout = _open_text(descriptors[-1], sys.__stdout__)
    if earlier[1] is sys.__stderr__:
        descriptors.append(Descriptor(ERROR))
        sys.stderr = _open_text(descriptors[-1], sys.__stderr__)
    try:
        yield descriptors
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = earlier


def _open_text(descriptor: Descriptor, like: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream with the encoding and the buffering of another one; None: it was closed."""
    buffer = io.BufferedWriter(descriptor)
    if not isinstance(like, io.TextIOWrapper):
        return io.TextIOWrapper(buffer, "utf-8", line_buffering=True)
    errors = "replace" if like.errors == "strict" else like.errors
    lines, at_once = like.line_buffering, like.write_through
    return io.TextIOWrapper(buffer, like.encoding, errors, line_buffering=lines, write_through=at_once)
