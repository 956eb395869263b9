"""Directories of prepared data: arrays, and a manifest that contains their checksums and is written last.

A run checks the manifest, and of each file the size and a sample: 16 blocks of 64 KiB, spread evenly from the first
byte to the last, so that a file of up to 1 MiB is read wholly. This takes milliseconds, and finds a file that was
truncated, exchanged, or zeroed in a large part; it finds one changed byte only if a block contains it. `suite data TASK
--check` reads every byte. Manifests of older versions contain no samples and no checksum of themselves.
"""

import hashlib
import json
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.contract import UserError

BLOCK, BLOCKS = 2**16, 16
SAMPLES, CHECKSUM = "blocks", "crc32"  # entries of a manifest that a task does not see


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read.

    Attributes:
        root: the directory.
        content: the entries that the task wrote.
        samples: the checksum of each file's sample; empty in older manifests.
    """

    root: Path
    content: dict[str, Any]
    samples: dict[str, str]

    def find_change(self, name: str) -> str:
        """Return what is wrong with a file; "" if nothing was found."""
        path = self.root / name
        if not path.is_file():
            return f"{path}: missing"
        if name in self.samples and sample_file(path) != self.samples[name]:
            return f"{path}: not as it was prepared, {path.stat().st_size:,} bytes"
        return ""

    def check_files(self, remedy: str) -> None:
        """Check every file's size and sample.

        Args:
            remedy: what to do about a changed file.

        Raises:
            UserError: naming the first file that has changed.
        """
        for name in self.samples:
            if change := self.find_change(name):
                raise UserError(f"{change}; {remedy}")


def write_manifest(path: Path, content: dict[str, Any], files: Iterable[str]) -> None:
    """Write a manifest whole or not at all.

    Args:
        path: of the manifest.
        content: its entries.
        files: names of the files beside it.
    """
    whole = {**content, SAMPLES: {name: sample_file(path.parent / name) for name in files}}
    text = json.dumps({**whole, CHECKSUM: _checksum(whole)}, indent=1, allow_nan=False)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(f"{text}\n")
    partial.replace(path)


def read_manifest(path: Path, remedy: str) -> Manifest:
    """Read a manifest.

    Args:
        path: of the manifest.
        remedy: what to do about a damaged manifest.

    Raises:
        UserError: it is damaged.
    """
    with report_damage(path, remedy):
        content = json.loads(path.read_text(), object_pairs_hook=_make_mapping)
        if CHECKSUM in content and content.pop(CHECKSUM) != _checksum(content):
            raise ValueError("its checksum differs")
        return Manifest(path.parent, content, dict(content.pop(SAMPLES, {})))


def _make_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of JSON; `json` itself would take the last of two equal keys."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two entries are called {next(name for name in names if names.count(name) > 1)}")
    return mapping


@contextmanager
def report_damage(path: Path, remedy: str) -> Generator[None]:
    """Turn errors of the code inside, which reads the manifest `path`, into `UserError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); {remedy}") from error


def _checksum(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def sample_file(path: Path) -> str:
    """Return a checksum over a file's size and its sample."""
    size = path.stat().st_size
    last, total = max(size - BLOCK, 0), zlib.crc32(str(size).encode())
    with path.open("rb") as file:
        for start in sorted({last * number // (BLOCKS - 1) for number in range(BLOCKS)}):
            file.seek(start)
            total = zlib.crc32(file.read(BLOCK), total)
    return f"{total:08x}"


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, reading it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
