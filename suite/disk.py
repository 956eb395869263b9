"""Writing and reading files. Readers see a complete file or none; an error names the file, the cause and a remedy.

Files that are read may come from anywhere: they are regular, of limited size, and not nested deeply.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
    errno.ENOTDIR: "a part of the path is a file; name another directory",
}
PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.ESTALE,
)  # errors of the machine: a run that meets one writes no result
MOST_BYTES = 64 * 2**20  # of a file that is read at once; a curve of 10,000 evaluations has about 2 MB
MOST_DEPTH = 64  # of lists and groups in JSON; results have at most 7 levels
REMEDY = "restore it, or move it away"  # for a damaged file
SYSTEM = re.compile(r"\(os error (\d+)\)")  # errno, as libraries written in Rust print it


class WriteError(UserError):
    """A file could not be written. The files that were complete before are untouched."""


class ReadError(UserError, ValueError):
    """A file could not be read, or does not contain what it should."""


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


def make_folder(path: Path) -> None:
    """Make a directory and those above it, unless they are there.

    Raises:
        WriteError: if one of them cannot be made.
    """
    with report_errors(path):
        path.mkdir(parents=True, exist_ok=True)


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


@contextmanager
def report_damage(path: Path, remedy: str = REMEDY) -> Generator[None]:
    """Turn errors of the code inside, which reads `path` and uses what it contains, into `ReadError`.

    Args:
        path: the file that the error names.
        remedy: what to do about it.

    Raises:
        ReadError: for every exception that unexpected content causes.
    """
    try:
        yield
    except ReadError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ReadError(f"{path}: damaged ({cause[:200]}); {remedy}") from error


def read_text(path: Path, most: int | None = MOST_BYTES, remedy: str = REMEDY) -> str:
    """Read a text file.

    Args:
        path: the file.
        most: the largest accepted size in bytes; None for any.
        remedy: what to do about a damaged file.

    Raises:
        ReadError: if it is no regular file, cannot be read, is too large, or is not UTF-8.
    """
    try:
        status = path.stat()  # opening a pipe would wait for a writer
        if not stat.S_ISREG(status.st_mode):
            raise ReadError(f"{path}: not a regular file")
        if most is not None and status.st_size > most:
            raise ReadError(f"{path}: larger than {most:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        cause = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise ReadError(f"{path}: {cause}") from error
    with report_damage(path, remedy):
        return content.decode()


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, reading it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, remedy: str = REMEDY) -> Any:
    """Read a JSON file; see `read_text`.

    Raises:
        ReadError: also if it is not JSON, or nested deeper than `MOST_DEPTH`.
    """
    text = read_text(path, remedy=remedy)
    with report_damage(path, remedy):
        value = json.loads(text)
        level = [value]
        for _ in range(MOST_DEPTH):
            nodes = [node for node in level if isinstance(node, dict | list)]
            level = [inner for node in nodes for inner in (node.values() if isinstance(node, dict) else node)]
        if level:
            raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
        return value


def read_yaml(path: Path, remedy: str = REMEDY) -> Any:
    """Read a YAML file; see `read_text`.

    Raises:
        ReadError: also if it is not YAML, or nested too deeply.
    """
    import yaml

    from suite.load import from_yaml  # the command line needs neither

    text = read_text(path, remedy=remedy)
    with report_damage(path, remedy):
        try:
            return from_yaml(text, bounded=True)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
