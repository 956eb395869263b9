"""Reads sets of idx files, as MNIST and Fashion-MNIST are published: images of bytes, and their labels.

A set has the name of a published one only if the checksums of its files are the published ones.
"""

import gzip
import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.contract import Data, UserError
from suite.tasks._data.order import draw_permutation

IMAGES = {"train": "train-images-idx3-ubyte", "valid": "t10k-images-idx3-ubyte"}
LABELS = {"train": "train-labels-idx1-ubyte", "valid": "t10k-labels-idx1-ubyte"}
MD5 = {  # of the uncompressed files, which some copies compress anew
    "MNIST": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "Fashion-MNIST": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
IMAGE, LABEL = 2051, 2049  # first number of a file of bytes in three dimensions, and in one
SPLIT_SEED = 0  # of the order in which a part of the validation images is chosen


@dataclass(frozen=True)
class IdxSet:
    """Images and labels in memory, by split.

    Attributes:
        images: (n, height, width) uint8.
        labels: (n,) uint8; empty if they were not read.
        data: describes them.
    """

    images: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    data: Data


def _read_content(folder: Path, name: str) -> tuple[Path, bytes]:
    """Return the path and the uncompressed contents of a file, which may be compressed."""
    dotted = name.replace("-idx", ".idx")  # as some archives name them
    paths = [folder / f"{spelled}{end}" for spelled in (name, dotted) for end in ("", ".gz")]
    path, *copies = [path for path in paths if path.exists()] or [paths[1]]
    content = _decompress(path)
    if other := next((copy for copy in copies if _decompress(copy) != content), None):
        raise UserError(f"{other}: differs from {path.name}, which is the same file; leave one of them")
    return path, content


def _decompress(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{path}: missing; put the set's four idx files into {path.parent}, plain or .gz") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged: {error}; download it again") from error


def read_file(folder: Path, name: str) -> tuple[np.ndarray, str]:
    """Read one file, plain or compressed.

    Args:
        folder: the directory.
        name: without `.gz`; the digit in it says how many dimensions the array has.

    Returns:
        The array, uint8, and the md5 of the uncompressed file.

    Raises:
        UserError: if the file is missing, damaged, or not such an idx file, or there are two that differ.
    """
    path, content = _read_content(folder, name)
    magic, axes = (IMAGE, 3) if "-idx3-" in name else (LABEL, 1)
    start = 4 + 4 * axes
    first, *shape = np.frombuffer(content[:start].ljust(start, b"\0"), ">u4").tolist()
    if first != magic:
        kind = "images" if magic == IMAGE else "labels"
        raise UserError(f"{path}: not a file of idx {kind}: it begins with {first} instead of {magic}")
    size = start + math.prod(shape)
    if len(content) != size:
        raise UserError(f"{path}: {len(content):,} bytes instead of {size:,}; download it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape), hashlib.md5(content).hexdigest()


def read_set(folder: Path, published: str, *, labelled: bool, valid: int | None = None) -> IdxSet:
    """Read both splits of a published set, or of one that nobody published.

    Args:
        folder: the directory of the files.
        published: the name of the expected set.
        labelled: read the labels, too.
        valid: use only so many validation images, the first ones of a fixed permutation; None uses all.

    Raises:
        UserError: if a file is missing or damaged, files do not fit each other or belong to another published set, or
            `valid` exceeds the images.
    """
    read = {name: read_file(folder, name) for name in _list_names(labelled)}
    images = {split: read[name][0] for split, name in IMAGES.items()}
    labels = {split: read[name][0] for split, name in LABELS.items() if labelled}
    _reject_misfits(folder, images, labels)
    md5 = {name: digest for name, (_, digest) in read.items()}
    known = next((name for name, sums in MD5.items() if md5.items() <= sums.items()), "")
    others = [name for name, sums in MD5.items() if name != published and md5.items() & sums.items()]
    if others:
        raise UserError(
            f"{folder}: contains files of {others[0]} instead of {published}; set another data_dir=DIRECTORY"
        )
    content, notes = "".join(md5.values()), [] if known else [f"idx images that are not the canonical {published}"]
    if valid is not None and valid != (whole := len(images["valid"])):
        if valid > whole:
            raise UserError(
                f"{folder} has only {whole:,} validation images, fewer than {valid:,}; set "
                f"task.sources.fashion.options.valid={whole}"
            )
        rows = draw_permutation(whole, seed=SPLIT_SEED, epoch=0)[:valid]
        for arrays in (images, labels) if labelled else (images,):
            arrays["valid"] = arrays["valid"][rows]
        notes.append(f"validation: {valid:,} of the {whole:,} images, the first of a fixed permutation")
        content += f"/{valid}"
    identity = hashlib.sha256(content.encode()).hexdigest()
    samples = {split: len(pixels) for split, pixels in images.items()}
    data = Data("real", known or "idx-images", identity, samples, unit="images", note="; ".join(notes))
    return IdxSet(images, labels, data)


def _reject_misfits(folder: Path, images: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> None:
    for split, pixels in images.items():
        if pixels.shape[1:] != images["train"].shape[1:] or not pixels.size:
            raise UserError(
                f"{folder / IMAGES[split]}: {len(pixels):,} images of {pixels.shape[1:]} pixels; replace it"
            )
        if split in labels and len(labels[split]) != len(pixels):
            raise UserError(f"{folder / LABELS[split]}: {len(labels[split]):,} labels of {len(pixels):,} images")


def _list_names(labelled: bool) -> list[str]:
    return [*IMAGES.values(), *(LABELS.values() if labelled else ())]


def find_faults(folder: Path, published: str, *, labelled: bool) -> list[str]:
    """Return one line for each file that is damaged, or not the one of the published set of this name.

    Raises:
        UserError: if the directory contains no idx images.
    """
    if not any(folder.glob("*-images?idx3-ubyte*")):
        raise UserError(f"{folder}: contains none of {published}'s idx files; put all four there, plain or .gz")
    faults = []
    for name in _list_names(labelled):
        try:
            _, md5 = read_file(folder, name)
        except UserError as error:
            faults.append(str(error))
            continue
        if md5 != (expected := MD5[published][name]):
            faults.append(f"{folder / name}: its md5 is {md5} instead of {expected}, {published}'s")
    return faults
