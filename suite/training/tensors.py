"""Files of arrays in safetensors' format: with a checksum, and with the types that safetensors leaves open."""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np

CHECKSUM = "crc32"  # the checksum's name in a file's metadata


class TensorSlice(Protocol):
    """One array of a file; only the rows that are asked for are read."""

    def get_shape(self) -> list[int]:
        """Return the array's shape."""
        ...

    def __getitem__(self, rows: slice) -> np.ndarray: ...


class TensorFile(Protocol):
    """An open file of arrays."""

    def keys(self) -> list[str]:
        """Return the names of the arrays."""
        ...

    def metadata(self) -> dict[str, str] | None:
        """Return the texts that were stored with the arrays."""
        ...

    def get_tensor(self, name: str) -> np.ndarray:
        """Read one array."""
        ...

    def get_slice(self, name: str) -> TensorSlice:
        """Open one array without reading it."""
        ...


def open_tensors(path: Path) -> AbstractContextManager[TensorFile]:
    """Open a file of arrays.

    Raises:
        SafetensorError: the file is damaged.
        OSError: the file cannot be read.
    """
    from safetensors import safe_open

    file: AbstractContextManager[TensorFile] = safe_open(path, framework="numpy")
    return file


def hash_tensors(names: Iterable[str], read: Callable[[str], np.ndarray]) -> str:
    """Return a checksum over names, types, shapes and values: crc32, which is fast and finds every flipped bit.

    Args:
        names: of the arrays, in any order.
        read: returns an array by its name; one is in memory at a time.
    """
    total = 0
    for name in sorted(names):
        value = read(name)
        total = zlib.crc32(f"{name}\t{value.dtype}\t{value.shape}\n".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> str:
    """Write arrays to a file; return their checksum, which the metadata also contains.

    Raises:
        SafetensorError, OSError: the file cannot be written.
    """
    from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]  # its PathLike has no type

    # ascontiguousarray alone would make scalars one-dimensional
    rows = {name: np.ascontiguousarray(value).reshape(value.shape) for name, value in arrays.items()}
    checksum = hash_tensors(rows, rows.__getitem__)
    save_file(rows, path, metadata={**metadata, CHECKSUM: checksum})
    _sort_metadata(path)
    return checksum


def _sort_metadata(path: Path) -> None:
    """Sort a file's metadata, which safetensors writes in random order, so that equal arrays make equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
        file.seek(8)
        file.write(text.encode().ljust(size))
