"""Copies checked results into a folder of results: all of them or none, and never over a file that is there."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from suite import disk
from suite.entries import strict
from suite.entries.finding import Entry
from suite.entries.strict import Unreadable
from suite.entries.submission import LOG, name_of, read_form

DIGEST_SUFFIX = ".events.sha256"  # `sha256sum --check` reads these files


@dataclass(frozen=True)
class Copy:
    """One file to write.

    Attributes:
        source: the submitted result.
        target: the file's new path.
        content: its bytes.
        digest: the line of the file that contains the log's digest; None if there was no log.
    """

    source: Path
    target: Path
    content: bytes
    digest: str | None

    @property
    def digest_path(self) -> Path:
        """Where the log's digest goes."""
        return self.target.with_name(self.target.stem + DIGEST_SUFFIX)


def find_accepted(folder: Path) -> list[Entry]:
    """Find the results that are already in a folder of results; other JSON files are left out."""
    entries = []
    for path in sorted(folder.glob("*/*.json")) if folder.is_dir() else ():
        with suppress(Unreadable):
            entries.append(Entry(path, read_form(path)[1]))
    return entries


def find_copies(
    submitted: Iterable[tuple[Entry, bytes]], folder: Path, existing: Sequence[Entry]
) -> tuple[list[Copy], list[tuple[Path, Path]], list[tuple[Path, str]]]:
    """Plan what to write.

    A result keeps its name in the folder. A further execution of the same command has the same name; eight digits of
    its execution are added.

    Args:
        submitted: checked results, with the bytes of their files.
        folder: the folder of results.
        existing: the results that it contains.

    Returns:
        The files to write; (submitted, existing) for each result that is there already; (submitted, fault) for each
        result whose execution is there with other content.
    """
    executions = {entry.result.execution_id: entry for entry in existing}
    taken = {entry.path for entry in existing}
    planned: list[Copy] = []
    already: list[tuple[Path, Path]] = []
    faults: list[tuple[Path, str]] = []
    for entry, content in submitted:
        execution = entry.result.execution_id
        if execution in executions:
            other = executions[execution]
            if entry.result == other.result:
                already.append((entry.path, other.path))
            else:
                faults.append(
                    (
                        entry.path,
                        f"differs from {other.file}, which has the same execution_id; a submitted result never changes",
                    )
                )
            continue
        target = folder / name_of(entry.result)
        if target in taken or target.exists():
            target = target.with_name(f"{target.stem}-x{execution[:8]}.json")
        if target in taken or target.exists():
            faults.append((entry.path, f"another file has its name, {target}; move that file away"))
            continue
        digest = None if entry.log_digest is None else f"{entry.log_digest}  {LOG}\n"
        planned.append(Copy(entry.path, target, content, digest))
        executions[execution] = Entry(target, entry.result)
        taken.add(target)
    return planned, already, faults


def write_accepted(planned: Sequence[Copy]) -> None:
    """Write the files; if one cannot be written, remove those already written.

    Raises:
        suite.disk.WriteError: if a file exists by now, or writing fails.
    """
    written: list[Path] = []
    try:
        for copy in planned:
            with disk.report_errors(copy.target):
                copy.target.parent.mkdir(parents=True, exist_ok=True)
            if copy.digest is not None:
                disk.create_file(copy.digest_path, copy.digest.encode())
                written.append(copy.digest_path)
            disk.create_file(copy.target, copy.content)
            written.append(copy.target)
    except BaseException:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise


def recorded_digest(path: Path) -> str | None:
    """Return the digest of a result's log, recorded when the result was submitted; None if there is none.

    Args:
        path: of the result.
    """
    file = path.with_name(path.stem + DIGEST_SUFFIX)
    try:
        words = strict.read_bytes(file, 1024).decode("ascii", "replace").split()
    except Unreadable:
        return None
    return words[0] if words and len(words[0]) == hashlib.sha256().digest_size * 2 else None
