"""Sources of samples, in NumPy. There is one module per source; a task works with any of them.

`digits` (real, bundled with scikit-learn), `shapes` (generated), `fashion` (real, `idx` files) and `folder` (real,
ImageNet's layout) are `Images`. `public` lists the sets that can be downloaded.
`order` says which sample stands where in a run, `augment` how one is distorted.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from suite.contract import Data, UserError


def stamp_files(paths: Iterable[Path]) -> str:
    """A hash of path, size and modification time of some files, for `Data.stamp`; missing files are included."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat() if path.exists() else None
        digest.update(f"{path}\t{status and (status.st_size, status.st_mtime_ns)}\n".encode())
    return digest.hexdigest()[:16]


def reject_copies(paths: Iterable[Path]) -> None:
    """Reject a file beside a compressed copy of it: a reader of both would read everything twice.

    Raises:
        UserError: naming the first two.
    """
    seen: dict[Path, Path] = {}
    for path in paths:
        if (first := seen.setdefault(path.with_suffix("") if path.suffix in (".gz", ".bz2") else path, path)) != path:
            raise UserError(f"{path.parent}: contains both {first.name} and {path.name}; leave one of them")


def count_recurring(train: Iterable[bytes], valid: Iterable[bytes]) -> int:
    """Count the validation samples that equal a training sample; memory grows with the validation samples only."""
    seen = Counter(hashlib.blake2b(sample, digest_size=16).digest() for sample in valid)
    return sum(seen.pop(hashlib.blake2b(sample, digest_size=16).digest(), 0) for sample in train)


class Images(Protocol):
    """Labelled square images in a training and a validation split. Opening a source draws no random numbers."""

    @property
    def classes(self) -> int:
        """Number of labels, which begin at 0."""
        ...

    @property
    def size(self) -> int:
        """Height and width in pixels; an image is (3, size, size)."""
        ...

    @property
    def data(self) -> Data:
        """Describes the data: checksum or version, and `samples` for the splits `train` and `valid`."""
        ...

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows: a pure function of its arguments and the source.

        Args:
            split: `train`, where images are augmented, or `valid`, where they are not.
            rows: (n,) integers below `data.samples[split]`, in any order, repetition allowed.
            seed: the run's seed.
            numbers: (n,) each sample's number in the run. With the seed it is the key of every augmentation, so
                that a sample looks the same whatever the batch size, the rank or the number of workers.

        Returns:
            Images (n, 3, size, size) float32, normalised, and labels (n,) int32.

        Raises:
            UserError: a sample cannot be read.
        """
        ...
