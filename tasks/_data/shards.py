"""Decoded photographs in shards that are memory-mapped: what `suite data resnet50 --from IMAGES --to DIR` has written.

A shard has the pixels of SHARD images one after another, (height, width, 3) uint8 each, and an index with a record for
each image. The manifest is written last.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks import _data
from suite.tasks._data import stamp_files
from suite.tasks._data.photographs import Photographs
from suite.tasks._data.prepared import Manifest, hash_file, read_manifest, report_damage
from suite.tasks._data.preprocessing import Preprocessing, fill_batch

MANIFEST = "manifest.json"
PLAN = "unfinished.json"  # describes a preparation until its manifest exists
FORMAT = 1
SHARD = 8192  # images; ImageNet's need about 160 shards, each with an open file
SPLITS = ("train", "valid")
# Of one image: first byte in the shard, height and width, label, and the row of the file that it was decoded from,
# which is its own unless this file could not be read.
RECORD = np.dtype([("start", "<i8"), ("height", "<i4"), ("width", "<i4"), ("label", "<i4"), ("row", "<i4")])
AGAIN = "prepare the images again: suite data TASK --from IMAGES --to DIR"
NOTE = "the identity covers names, sizes and classes of the files, not their contents"


def name_shards(split: str, samples: int) -> list[str]:
    """Return the names of a split's shards, without suffix."""
    return [f"{split}-{number:05d}" for number in range(-(-samples // SHARD))]


class Shards(Photographs):
    """Images of a prepared directory, preprocessed; equal to those of the directory of files.

    Attributes:
        names: class names; a label is an index into them.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        on_error: str = "stop",
        classes: list[str] | None = None,
        **options: Any,
    ):
        """Map the files; no image is read.

        Args:
            data_dir: the prepared directory.
            on_error: has no effect: the files that cannot be read were found while preparing.
            classes: must be the classes that were prepared, or None.
            options: of `Preprocessing`.

        Raises:
            UserError: if a file was changed, or the images were prepared for other options.
        """
        super().__init__(Preprocessing(**options))
        prepared = open_manifest(data_dir)
        prepared.check_files(AGAIN)
        with report_damage(prepared.root / MANIFEST, AGAIN):
            self._open(prepared, classes)
        self.classes = len(self.names)

    def _open(self, prepared: Manifest, classes: list[str] | None) -> None:
        content, root = prepared.content, prepared.root
        self.names: list[str] = content["classes"]
        if classes is not None and sorted(set(classes)) != self.names:
            raise UserError(
                f"{root}: has {len(self.names)} other classes; set task.classes=null, or prepare these classes"
            )
        if content["warp"] not in (None, self.preprocessing.warp):
            raise UserError(
                f"{root}: its images were resized to {content['warp']} × {content['warp']}; "
                f"set +task.sources.folder.options.warp={content['warp']}, or prepare others"
            )
        names = {split: name_shards(split, content["samples"][split]) for split in SPLITS}
        self._pixels = {
            split: [np.memmap(root / f"{name}.bin", np.uint8, "r") for name in shards]
            for split, shards in names.items()
        }
        self._index = {
            split: np.concatenate([np.load(root / f"{name}.npy") for name in shards]) for split, shards in names.items()
        }
        for split, index in self._index.items():
            self._check_index(split, index, content["samples"][split])
        side = content["side"]
        identity: str = content["identity"]
        self.data = Data(
            kind="real",
            name=content["name"],
            identity=hashlib.sha256(f"{identity}\tside {side}".encode()).hexdigest() if side else identity,
            samples={split: len(index) for split, index in self._index.items()},
            unit="images",
            note=f"{NOTE}; images were reduced to a shorter side of {side} pixels before any crop" if side else NOTE,
            skipped=tuple(content["skipped"]),
            stamp=stamp_files(root / name for name in sorted(content["files"])),
        )

    def _check_index(self, split: str, index: np.ndarray, samples: int) -> None:
        """Check that the images of a split are as many as the manifest says, and fill their shards without a gap.

        Raises:
            ValueError: if they do not.
        """
        if len(index) != samples:
            raise ValueError(f"{split} has {len(index):,} images in its index, but {samples:,} in the manifest")
        if samples and not 0 <= index["label"].min() <= index["label"].max() < len(self.names):
            raise ValueError(f"{split} has labels beyond its {len(self.names)} classes")
        sizes = 3 * index["height"].astype(np.int64) * index["width"]
        for number, pixels in enumerate(self._pixels[split]):
            rows = slice(number * SHARD, (number + 1) * SHARD)
            ends = np.cumsum(sizes[rows])
            wrong = np.flatnonzero(index["start"][rows] != ends - sizes[rows])
            if len(wrong) or ends[-1] != len(pixels):
                row = number * SHARD + int(wrong[0] if len(wrong) else len(ends) - 1)
                raise ValueError(
                    f"{name_shards(split, samples)[number]}: the pixels of image {row} are not where it ends"
                )

    def fill_images(
        self, images: np.ndarray, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray
    ) -> np.ndarray:
        """Write some rows into `images`, and return their labels."""

        def fill_place(place: int) -> None:
            pixels = self.open_pixels(split, int(rows[place]))
            self.preprocessing.fill_input(images[place], pixels, split, seed=seed, number=int(numbers[place]))

        fill_batch(fill_place, len(rows))
        return self._index[split]["label"][rows]

    def open_pixels(self, split: str, row: int) -> np.ndarray:
        """Return the stored pixels of one image, (height, width, 3) uint8, mapped."""
        record = self._index[split][row]
        start, height, width = int(record["start"]), int(record["height"]), int(record["width"])
        return self._pixels[split][row // SHARD][start : start + 3 * height * width].reshape(height, width, 3)

    def count_images(self, split: str) -> Mapping[str, int]:
        """Return the number of images of each class."""
        return {**dict.fromkeys(self.names, 0), **Counter(self.names[label] for label in self._index[split]["label"])}

    def hash_images(self, split: str) -> Iterator[bytes]:
        """Yield each image's shape and pixels."""
        for row in range(self.data.samples[split]):
            pixels = self.open_pixels(split, row)
            yield repr(pixels.shape).encode() + pixels.tobytes()


def check_finished(data_dir: str | Path) -> None:
    """Refuse a directory in which a preparation has not finished.

    Raises:
        UserError: with the command that continues it.
    """
    root = Path(data_dir).expanduser()
    if (root / PLAN).is_file() and not (root / MANIFEST).exists() and not (root / "train").is_dir():
        raise UserError(
            f"{root}: contains an unfinished preparation; use the same 'suite data TASK --from IMAGES --to {root}' "
            "again, which continues it"
        )


def holds_shards(data_dir: str | Path | None) -> bool:
    """Return whether a directory contains prepared images; one of image files may have another program's manifest."""
    root = Path(data_dir or "").expanduser()
    return data_dir is not None and (root / MANIFEST).is_file() and not (root / "train").is_dir()


def open_manifest(data_dir: str | Path) -> Manifest:
    """Read the manifest of a prepared directory.

    Raises:
        UserError: if it is damaged, or of another version.
    """
    path = Path(data_dir).expanduser() / MANIFEST
    manifest = read_manifest(path, AGAIN)
    if (form := manifest.content.get("format")) != FORMAT:
        raise UserError(f"{path}: its format is {form}, but this version reads {FORMAT}; {AGAIN}")
    return manifest


def find_changed_files(data_dir: str | Path) -> list[str]:
    """Read all files; return one line for each file whose bytes have changed."""
    prepared, faults = open_manifest(data_dir), list[str]()
    with report_damage(prepared.root / MANIFEST, AGAIN):
        for name, expected in prepared.content["files"].items():
            path = prepared.root / name
            checksum = hash_file(path) if path.is_file() else "missing"
            if checksum != expected:
                faults.append(f"{path}: its sha256 is {checksum[:12]} instead of {expected[:12]}")
    return faults


def count_recurring(data_dir: str | Path) -> int:
    """Return how many validation images have the pixels of a training image."""
    shards = Shards(data_dir, size=1, resize=1)
    return _data.count_recurring(shards.hash_images("train"), shards.hash_images("valid"))
