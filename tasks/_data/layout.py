"""Lists the image files of a directory laid out like ImageNet, and finds damaged ones."""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile

from suite.contract import UserError
from suite.tasks import _data
from suite.tasks._data.preprocessing import THREADS

SUFFIXES = (".jpg", ".jpeg", ".png")  # in any case: ImageNet's files end in .JPEG
CUT_OFF = "the file ends within this line; if the line is complete, add a newline"
OTHER_FORMATS = (".bmp", ".gif", ".jfif", ".jpe", ".tif", ".tiff", ".webp")  # images, but not read
LAYOUT = (
    "Expected train/<class>/*.JPEG and val/<class>/*.JPEG (also .jpg, .jpeg, .png; valid/ for val/), or a flat val/ "
    "beside val.txt with a line '<file> <class>' for each image. Set data_dir=DIRECTORY"
)
# What Pillow raises for a damaged file; SyntaxError and ValueError come from its PNG reader.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class File:
    """One image file: its path from `data_dir`, its size in bytes, its class by name, its modification time (ns)."""

    path: str
    bytes: int
    label: str
    modified: int = 0


@dataclass(frozen=True)
class Layout:
    """Contents of an image directory: sorted class names, whose indices are the labels, and the files by split."""

    root: Path
    classes: list[str]
    splits: dict[str, list[File]]


def read_layout(data_dir: str | Path | None, *, classes: list[str] | None = None) -> Layout:
    """List an image directory without opening an image.

    Args:
        data_dir: the directory; None means that the option is not set.
        classes: names of the class directories to use; None uses all of `train/`.

    Returns:
        The layout, with files sorted by class and name, or in `val.txt`'s order.

    Raises:
        UserError: if the directory is missing or laid out differently, or contains an image that would not be read:
            beside or below the class directories, or not in `val.txt`.
    """
    if data_dir is None:
        raise UserError(f"no image directory is given. {LAYOUT}")
    root = Path(data_dir).expanduser()
    if not (root / "train").is_dir():
        raise UserError(f"no image directory at {root}: {root / 'train'} is missing. {LAYOUT}")
    present = _directories(root / "train")
    names = sorted(set(present if classes is None else classes))
    if absent := [name for name in names if name not in present]:
        near = ", ".join(get_close_matches(absent[0], present) or present[:3])
        raise UserError(f"no class directory {root / 'train' / absent[0]}; task.classes may contain {near}, …")

    found = [root / name for name in ("val", "valid") if (root / name).is_dir()]
    if len(found) > 1:
        raise UserError(f"{root}: contains both val and valid; leave one of them")
    if not found:
        raise UserError(f"no validation images in {root}: {root / 'val'} is missing. {LAYOUT}")
    held_out = found[0]
    if folders := _directories(held_out):
        _reject_images_beside(held_out)
        if classes is None and (unknown := sorted(set(folders) - set(names))):
            raise UserError(f"class {unknown[0]} is in {held_out} but not in {root / 'train'}. {LAYOUT}")
        valid = [file for name in names if name in folders for file in _files(root, f"{held_out.name}/{name}", name)]
    else:
        labels = set(names)
        valid = [file for file in _listed(root, held_out.name, set(present)) if file.label in labels]
    _reject_images_beside(root / "train")
    train = [file for name in names for file in _files(root, f"train/{name}", name)]
    for split, files in (("train", train), (held_out.name, valid)):
        if not files:
            raise UserError(f"{root / split} contains no image of the {len(names)} classes. {LAYOUT}")
    return Layout(root, names, {"train": train, "valid": valid})


def _directories(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))


def _reject_images_beside(directory: Path) -> None:
    """Raise `UserError` for an image beside class directories, which has no class."""
    with os.scandir(directory) as entries:
        if lonely := min((entry.name for entry in entries if _is_image(entry)), default=None):
            raise UserError(f"{directory / lonely}: belongs to no class directory and would not be read. {LAYOUT}")


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")


def _files(root: Path, folder: str, label: str) -> list[File]:
    files = []
    with os.scandir(root / folder) as entries:  # pathlib would need a further system call for each size
        for entry in entries:
            if _is_image(entry):
                status = _stat(root / folder, entry)
                files.append(File(f"{folder}/{entry.name}", status.st_size, label, status.st_mtime_ns))
            else:
                _reject_hidden(root / folder, entry)
    return sorted(files, key=lambda file: file.path)


def _reject_hidden(folder: Path, entry: os.DirEntry[str]) -> None:
    """Raise `UserError` for an entry of a class directory that is, or may contain, images that would not be read."""
    if entry.name.startswith("."):
        return
    if entry.is_dir():
        raise UserError(f"{folder / entry.name}: a directory in a class directory, which would not be read. {LAYOUT}")
    if entry.name.lower().endswith(OTHER_FORMATS):
        raise UserError(f"{folder / entry.name}: only .jpg, .jpeg and .png are read; convert it, or move it elsewhere")


def _stat(folder: Path, entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        reason = "a symbolic link to a missing file" if entry.is_symlink() else error.strerror
        raise UserError(f"{folder / entry.name}: {reason}; remove it, or restore the file") from error


def _listed(root: Path, folder: str, classes: set[str]) -> Iterator[File]:
    """Yield the files of a flat folder, with their classes from the list beside the folder."""
    listing = root / f"{folder}.txt"
    if not listing.is_file():
        raise UserError(f"{root / folder} contains no class directories, and {listing} is missing. {LAYOUT}")
    present = {file.path: file for file in _files(root, folder, "")}
    first: dict[str, int] = {}
    lines = listing.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        raise UserError(f"{listing}, line {len(lines)}: {CUT_OFF}")
    for number, line in enumerate(lines, start=1):
        match line.split():
            case [name, _] if first.setdefault(name, number) != number:
                raise UserError(f"{listing}, line {number}: {name} is there twice, first in line {first[name]}")
            case [name, label] if label in classes and f"{folder}/{name}" in present:
                yield replace(present[f"{folder}/{name}"], label=label)
            case [name, label] if label in classes:
                raise UserError(f"{listing}, line {number}: no image {root / folder / name}. {LAYOUT}")
            case [_, label]:
                raise UserError(f"{listing}, line {number}: no class directory {root / 'train' / label}. {LAYOUT}")
            case _:
                raise UserError(f"{listing}, line {number}: {line.strip()!r} is not '<file> <class>'. {LAYOUT}")
    if unlisted := next((path for path in present if path.removeprefix(f"{folder}/") not in first), None):
        raise UserError(f"{root / unlisted}: no line of {listing} names it; add one, or move the image elsewhere")


def decode(path: Path) -> Image.Image:
    """Decode an image file to 8-bit RGB.

    Grey, palette and CMYK images are converted, transparency is dropped, 16-bit grey loses its lower byte, and the EXIF
    orientation is ignored, because ImageNet's labels and published results refer to the stored pixels.

    Raises:
        UNREADABLE: if the file is missing, damaged or truncated.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # some packages set it to True; then truncated images are accepted
    with Image.open(path) as image:
        image.load()
        if image.mode.startswith("I;16"):
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        if image.mode == "RGB":
            return image  # `convert` would copy it
        return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


def find_damaged_files(data_dir: str | Path) -> list[str]:
    """Decode every image of both splits, to find files that would stop a run or be skipped.

    Changed bytes inside the compressed data may still decode; they are not found.

    Returns:
        One line `<path>: <reason>` for each file that cannot be read.

    Raises:
        UserError: if the directory is not laid out like ImageNet.
    """
    layout = read_layout(data_dir)

    def fault(file: File) -> str:
        try:
            decode(layout.root / file.path)
        except UNREADABLE as error:
            return f"{file.path}: {error}"
        return ""

    faults, files = [], (file for split in layout.splits.values() for file in split)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(files, 1024)):  # all at once would queue a million tasks
            faults += filter(None, pool.map(fault, chunk))
    return faults


def count_recurring(data_dir: str | Path) -> int:
    """Return how many validation files have the contents of a training file; only files of equal size are read."""
    found = read_layout(data_dir)
    sizes = set.intersection(*({file.bytes for file in files} for files in found.splits.values()))
    train, valid = (
        ((found.root / file.path).read_bytes() for file in found.splits[split] if file.bytes in sizes)
        for split in ("train", "valid")
    )
    return _data.count_recurring(train, valid)


def census(data_dir: str | Path) -> dict[str, dict[str, int]]:
    """Return the number of images of each class in each split of a directory; no image is opened."""
    found = read_layout(data_dir)
    none = dict.fromkeys(found.classes, 0)
    return {split: {**none, **Counter(file.label for file in files)} for split, files in found.splits.items()}
