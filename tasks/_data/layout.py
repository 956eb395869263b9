"""Which image files lie where in a directory laid out like ImageNet, and which of them cannot be read."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile

from suite.contract import UserError

SUFFIXES = (".jpg", ".jpeg", ".png")  # in any case: ImageNet's files end in .JPEG
LAYOUT = (
    "Expected train/<class>/*.JPEG and val/<class>/*.JPEG (also .jpg, .jpeg, .png; valid/ for val/), or a flat val/ "
    "beside val.txt with a line '<file> <class>' for each image. Type data_dir=DIRECTORY"
)
# What Pillow raises for a damaged file; SyntaxError and ValueError come from its PNG reader.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class File:
    """One image file: its path from `data_dir`, its size in bytes, its class by name."""

    path: str
    bytes: int
    label: str


@dataclass(frozen=True)
class Layout:
    """What an image directory holds: sorted class names, whose places are the labels, and the files by split."""

    root: Path
    classes: list[str]
    splits: dict[str, list[File]]


def scan(data_dir: str | Path | None, *, classes: list[str] | None = None) -> Layout:
    """List an image directory without opening an image.

    Args:
        data_dir: the directory; None, as an unset option, is answered like a missing one.
        classes: names of the class directories to use; all of `train/` by default.

    Returns:
        The layout, with files sorted by class and name, or in `val.txt`'s order.

    Raises:
        UserError: the directory does not look like that.
    """
    if data_dir is None:
        raise UserError(f"this data set is a directory of image files, and none is given. {LAYOUT}")
    root = Path(data_dir).expanduser()
    if not (root / "train").is_dir():
        raise UserError(f"no image directory at {root}: {root / 'train'} is missing. {LAYOUT}")
    present = _directories(root / "train")
    names = sorted(set(present if classes is None else classes))
    if absent := [name for name in names if name not in present]:
        near = ", ".join(get_close_matches(absent[0], present) or present[:3])
        raise UserError(f"no class directory {root / 'train' / absent[0]}; task.classes can name {near}, …")

    held_out = next((root / name for name in ("val", "valid") if (root / name).is_dir()), None)
    if held_out is None:
        raise UserError(f"no validation images in {root}: {root / 'val'} is missing. {LAYOUT}")
    if folders := _directories(held_out):
        if classes is None and (strange := sorted(set(folders) - set(names))):
            raise UserError(f"class {strange[0]} is in {held_out} but not in {root / 'train'}. {LAYOUT}")
        valid = [file for name in names if name in folders for file in _files(root, f"{held_out.name}/{name}", name)]
    else:
        wanted = set(names)
        valid = [file for file in _listed(root, held_out.name, set(present)) if file.label in wanted]
    train = [file for name in names for file in _files(root, f"train/{name}", name)]
    for split, files in (("train", train), (held_out.name, valid)):
        if not files:
            raise UserError(f"no image of the {len(names)} classes in {root / split}. {LAYOUT}")
    return Layout(root, names, {"train": train, "valid": valid})


def _directories(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(root: Path, folder: str, label: str) -> list[File]:
    with os.scandir(root / folder) as entries:  # pathlib would ask the file system once more for each size
        files = [
            File(f"{folder}/{entry.name}", entry.stat().st_size, label)
            for entry in entries
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")
        ]
    return sorted(files, key=lambda file: file.path)


def _listed(root: Path, folder: str, classes: set[str]) -> Iterator[File]:
    """The files of a flat folder, with their classes from the list beside it."""
    listing = root / f"{folder}.txt"
    if not listing.is_file():
        raise UserError(f"{root / folder} holds no class directories, and {listing} is missing. {LAYOUT}")
    present = {file.path: file for file in _files(root, folder, "")}
    for number, line in enumerate(listing.read_text().splitlines(), start=1):
        match line.split():
            case [name, label] if label in classes and f"{folder}/{name}" in present:
                yield File(f"{folder}/{name}", present[f"{folder}/{name}"].bytes, label)
            case [name, label] if label in classes:
                raise UserError(f"{listing}, line {number}: no image {root / folder / name}. {LAYOUT}")
            case [_, label]:
                raise UserError(f"{listing}, line {number}: no class directory {root / 'train' / label}. {LAYOUT}")
            case _:
                raise UserError(f"{listing}, line {number}: {line!r} is not '<file> <class>'. {LAYOUT}")


def decode(path: Path) -> Image.Image:
    """A whole image file as 8-bit RGB.

    Grey, palette and CMYK are converted, transparency is dropped, 16-bit grey loses its lower byte, and the EXIF
    orientation is ignored: ImageNet's labels and everybody's results refer to the pixels as stored.

    Raises:
        UNREADABLE: the file is missing, damaged or cut short.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # some packages switch it on, and then half an image passes for a whole
    with Image.open(path) as image:
        image.load()
        if image.mode.startswith("I;16"):
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


def verify(data_dir: str | Path, *, workers: int = 4) -> list[str]:
    """Decode every image of both splits, to find what would stop a run, or be skipped, hours later.

    Bytes altered inside the compressed data may still decode, and are then not found.

    Returns:
        One line `<path>: <reason>` for each file that cannot be read; empty where all is well.

    Raises:
        UserError: the directory is not laid out like ImageNet.
    """
    layout = scan(data_dir)

    def fault(file: File) -> str:
        try:
            decode(layout.root / file.path)
        except UNREADABLE as error:
            return f"{file.path}: {error}"
        return ""

    faults, files = [], (file for split in layout.splits.values() for file in split)
    with ThreadPoolExecutor(workers) as pool:
        while some := list(islice(files, 1024)):  # a million at once would queue a million tasks
            faults += filter(None, pool.map(fault, some))
    return faults
