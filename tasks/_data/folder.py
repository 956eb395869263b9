"""Reads photographs in ImageNet's directory layout."""

import hashlib
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from suite.contract import Data, UserError
from suite.tasks._data import layout, shards
from suite.tasks._data.layout import UNREADABLE, decode, read_layout
from suite.tasks._data.photographs import Photographs
from suite.tasks._data.preprocessing import Preprocessing, fill_batch
from suite.tasks._data.shards import NOTE, Shards, check_finished, holds_shards

# ImageNet-1k: Russakovsky et al. 2015, table 2
PUBLISHED = Data("real", "ImageNet-1k", "not here", {"train": 1_281_167, "valid": 50_000}, unit="images")
CLASSES = 1000


class Folder(Photographs):
    """Images of a directory, preprocessed.

    Attributes:
        names: class names; a label is an index into them.
        skipped: files replaced so far, sorted paths from `data_dir`.
    """

    def __init__(
        self,
        data_dir: str | Path | None,
        *,
        on_error: str = "stop",
        classes: list[str] | None = None,
        **options: Any,
    ):
        """List the files; no image is opened, and none is cached.

        Args:
            data_dir: the directory with `train/` and `val/`; see `layout.read_layout`.
            on_error: `stop` at an unreadable file, or `skip` it: the next readable file of its split, in the order
                of rows, replaces it and its label, and its name is added to `skipped`.
            classes: class directories to use; all by default.
            options: of `Preprocessing`.

        Raises:
            UserError: if the directory or an option is not as described.
        """
        super().__init__(Preprocessing(**options))
        found = read_layout(data_dir, classes=classes)
        self.names, self._root = found.classes, found.root
        self.classes = len(self.names)
        self.skipped: list[str] = []
        self._on_error, self._lock = on_error, Lock()

        labels = {name: label for label, name in enumerate(self.names)}
        self.paths = {split: [file.path for file in files] for split, files in found.splits.items()}
        self.labels = {
            split: np.array([labels[file.label] for file in files], np.int32) for split, files in found.splits.items()
        }
        digest, stamped = hashlib.sha256(), hashlib.sha256()
        present = {file.label for files in found.splits.values() for file in files}
        for name in (name for name in self.names if name not in present):
            digest.update(f"{name}\n".encode())  # a class without images has a label, too
        for file in (file for files in found.splits.values() for file in files):
            digest.update(f"{file.path}\t{file.bytes}\t{file.label}\n".encode())
            stamped.update(f"{file.modified}\n".encode())
        self._identity, self._stamp = digest.hexdigest(), stamped.hexdigest()[:16]

    @property
    def data(self) -> Data:
        """Describes the files. The identity is a sha256 over path, size and class of every file, in order of rows.

        It does not cover the contents, because reading them takes hours. `check` reads them.
        """
        return Data(
            kind="real",
            name=self._root.resolve().name,
            identity=self._identity,
            samples={split: len(paths) for split, paths in self.paths.items()},
            unit="images",
            note=NOTE,
            skipped=tuple(self.skipped),
            stamp=self._stamp,
        )

    def fill_images(
        self, images: np.ndarray, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray
    ) -> np.ndarray:
        """Decode some rows into `images`, and return their labels.

        Raises:
            UserError: if a file cannot be read and on_error is `stop`, or no file of the split can be read.
        """
        labels = np.empty(len(rows), np.int32)
        skipped: list[str] = []

        def fill_place(place: int) -> None:
            image, readable_row, unreadable = self.open_image(split, int(rows[place]))
            self.preprocessing.fill_input(images[place], image, split, seed=seed, number=int(numbers[place]))
            labels[place] = self.labels[split][readable_row]
            skipped.extend(unreadable)

        fill_batch(fill_place, len(rows))
        with self._lock:
            self.skipped = sorted({*self.skipped, *skipped})
        return labels

    def open_image(self, split: str, row: int) -> tuple[Image.Image, int, list[str]]:
        """Return the first readable image from `row` on, its row, and the paths of unreadable files before it."""
        paths, unreadable = self.paths[split], []
        for candidate in chain(range(row, len(paths)), range(row)):
            try:
                return decode(self._root / paths[candidate]), candidate, unreadable
            except UNREADABLE as error:
                if self._on_error != "skip":
                    raise UserError(
                        f"cannot read {self._root / paths[candidate]}: {error}. Repair it, or set "
                        "task.on_error=skip to leave such files out; the result will list them"
                    ) from error
                unreadable.append(paths[candidate])
        raise UserError(f"no image of the {split} split in {self._root} can be read. Set data_dir=DIRECTORY")


def make(*, data_dir: str | None, **options: Any) -> Folder | Shards:
    """Open a directory of images: the files, or the shards that were made from them.

    Raises:
        UserError: if the directory or an option is not as described.
    """
    if data_dir and holds_shards(data_dir):
        return Shards(data_dir, **options)
    if data_dir:
        check_finished(data_dir)
    return Folder(data_dir, **options)


def check(data_dir: str, **_: Any) -> list[str]:
    """Read all files of a directory; return one line for each that cannot be read, or has changed."""
    return shards.find_changed_files(data_dir) if holds_shards(data_dir) else layout.find_damaged_files(data_dir)


def count_recurring(data_dir: str, **_: Any) -> int:
    """Return how many validation images equal a training image: as files, or in shards as pixels."""
    return (shards if holds_shards(data_dir) else layout).count_recurring(data_dir)


def census(data_dir: str, **options: Any) -> dict[str, dict[str, int]]:
    """Return the number of images of each class in each split of a directory; no image is opened."""
    if not holds_shards(data_dir):
        return layout.census(data_dir)
    found = Shards(data_dir, **options)
    return {split: dict(found.count_images(split)) for split in found.data.samples}
