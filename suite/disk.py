"""Writing files. Readers see a complete file or none; an error names the file, the cause and a remedy."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from suite.contract import UserError

CAUSES = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EFBIG: "the file is larger than the system allows; raise `ulimit -f`",
    errno.EROFS: "the file system is read-only; mount it for writing",
    errno.EACCES: "no permission to write; change the permissions",
    errno.EPERM: "no permission to write; change the permissions",
    errno.EIO: "the device reports an input/output error; check the disk",
    errno.ESTALE: "the file is gone from the network file system; check the mount",
    errno.ENOENT: "the file or its directory was removed by another process",
    errno.EEXIST: "a file of this name exists; move it away",
}
PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.ESTALE,
)  # errors of the machine: a run that meets one writes no result
SYSTEM = re.compile(r"\(os error (\d+)\)")  # errno, as libraries written in Rust print it


class WriteError(UserError):
    """A file could not be written. The files that were complete before are untouched."""


def explain_error(error: BaseException) -> str:
    """Cause and remedy of an `OSError`, or of a Rust library's error that contains an error number."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := SYSTEM.search(str(error))):
        number = int(match[1])
    return CAUSES.get(number or 0) or str(error)


@contextmanager
def report_errors(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of the code inside, which writes `path`, into `WriteError`.

    Args:
        path: the file that the error names.
        kinds: exceptions of a library that mean a failed write, in addition to `OSError`.

    Raises:
        WriteError: for `OSError` and for `kinds`.
    """
    try:
        yield
    except (OSError, *kinds) as error:
        raise WriteError(f"{path}: {explain_error(error)}") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, in several calls if the system accepts only a part."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def replace_file(path: Path, text: str) -> None:
    """Replace a text file durably; if writing fails, the earlier file remains.

    Raises:
        WriteError: if the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    with report_errors(path):
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                write_all(descriptor, text.encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def create_file(path: Path, content: bytes) -> None:
    """Write a new file durably. An existing file is never replaced, not even one that appears at the same moment.

    Raises:
        WriteError: if the file exists or cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with report_errors(path):
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(partial, path)  # fails if the path exists, unlike a rename
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the device (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
