"""Reads images from files: MNIST's idx format, and the MATLAB files of CURVES and FACES."""

import gzip
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks import _data

IMAGES = {"train": "train-images-idx3-ubyte", "valid": "t10k-images-idx3-ubyte"}
# md5 of the uncompressed files that LeCun published
MNIST = {"train": "6bbc9ace898e44ae57da46a324031adb", "valid": "2646ac647ad5339dbf082846283269ea"}
MAGIC = 2051  # of an idx file of bytes in three dimensions
CURVES, FACES = "digs3pts_1.mat", "newfaces_rot_single.mat"
FACES_SPLIT = (103_500, 41_400)  # first for training, last for testing (renyiryry/kbfgs_neurips2020_public)


class Images:
    """Images in memory, at most 400 MB; bytes are converted to float32 when they are read.

    Attributes:
        splits: the images as they are stored, (n, pixels).
        pixels: of one image.
    """

    def __init__(self, name: str, identity: str, splits: dict[str, np.ndarray], scale: float, note: str):
        self.splits, self._scale = splits, np.float32(scale)
        samples = {split: len(images) for split, images in splits.items()}
        self.data = Data("real", name, identity, samples, unit="images", note=note)
        self.pixels = splits["train"].shape[1]

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Some images, (n, pixels) float32."""
        return self.splits[split][rows].astype(np.float32) * self._scale


def _bytes(folder: Path, name: str) -> tuple[Path, bytes]:
    """Return the path and the uncompressed contents of a file, which may be compressed."""
    dotted = name.replace("-idx3", ".idx3")  # as some archives name them
    paths = [folder / f"{spelled}{end}" for spelled in (name, dotted) for end in ("", ".gz")]
    path = next((path for path in paths if path.exists()), paths[1])
    try:
        return path, gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing; put MNIST's four idx files into {folder}, plain or .gz") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged: {error}; download it again") from error


def read_idx(folder: Path, split: str) -> tuple[np.ndarray, str]:
    """One split's images as bytes (n, 784), and the md5 of the uncompressed file.

    Raises:
        UserError: if the file is missing, damaged, or not an idx file.
    """
    path, content = _bytes(folder, IMAGES[split])
    magic, count, height, width = np.frombuffer(content[:16].ljust(16, b"\0"), ">u4").tolist()
    if magic != MAGIC:
        raise UserError(f"{path}: not a file of idx images: it begins with {magic} instead of {MAGIC}")
    if len(content) != 16 + count * height * width:
        raise UserError(f"{path}: {len(content):,} bytes instead of {16 + count * height * width:,}; download it again")
    pixels = np.frombuffer(content, np.uint8, offset=16).reshape(count, height * width)
    return pixels, hashlib.md5(content).hexdigest()


def load_mnist(*, data_dir: str | None) -> Images:
    """MNIST, pixels in 0…1."""
    if data_dir is None:
        raise UserError("MNIST is not here; set data_dir=DIRECTORY")
    read = {split: read_idx(Path(data_dir), split) for split in IMAGES}
    known = {split: md5 for split, (_, md5) in read.items()} == MNIST
    note = "" if known else "idx images that are not the canonical MNIST"
    identity = hashlib.sha256("".join(md5 for _, md5 in read.values()).encode()).hexdigest()
    name = "MNIST" if known else "idx-images"
    return Images(name, identity, {split: images for split, (images, _) in read.items()}, 1 / 255, note)


def _mat(folder: Path, name: str, *keys: str) -> tuple[list[np.ndarray], str]:
    from scipy.io import loadmat

    path = folder / name
    if not path.exists():
        raise UserError(
            f"{path}: missing; the suite cannot distribute it: download it with the code of Hinton and Martens"
        )
    try:
        content = loadmat(path)
    except Exception as error:
        raise UserError(f"{path}: not a readable MATLAB file: {error}") from error
    missing = [key for key in keys if key not in content]
    if missing:
        raise UserError(f"{path}: contains no {' and no '.join(missing)}")
    return [np.asarray(content[key], np.float32) for key in keys], hashlib.sha256(path.read_bytes()).hexdigest()


def load_curves(*, data_dir: str | None) -> Images:
    """The published CURVES: 20,000 and 10,000 images. Without a published checksum, the data has the file's name."""
    if data_dir is None:
        raise UserError(f"{CURVES} is not here; set data_dir=DIRECTORY")
    (train, valid), identity = _mat(Path(data_dir), CURVES, "bdata", "bdatatest")
    return Images(CURVES, identity, {"train": train, "valid": valid}, 1.0, "")


def load_faces(*, data_dir: str | None) -> Images:
    """The published FACES: 103,500 and 41,400 images. Without a published checksum, the data has the file's name."""
    if data_dir is None:
        raise UserError(f"{FACES} is not here; set data_dir=DIRECTORY")
    (images,), identity = _mat(Path(data_dir), FACES, "newfaces_single")
    images, (first, last) = images.T, FACES_SPLIT
    splits = {"train": images[:first], "valid": images[-last:]}
    return Images(FACES, identity, splits, 1.0, "")


def check(data_dir: str, *, data: str = "mnist", **_: Any) -> list[str]:
    """Read the files of one source; return one line for each that is damaged or, for MNIST, not the canonical file.

    Args:
        data_dir: the directory.
        data: mnist | curves_mat | faces_mat.
        _: unused.

    Raises:
        UserError: if the directory contains none of the files.
    """
    return _damaged_mnist(Path(data_dir)) if data == "mnist" else _damaged_mat(data, data_dir)


def count_recurring(data_dir: str, *, data: str = "mnist", **_: Any) -> int:
    """Return how many validation images have the pixels of a training image."""
    images = SOURCES[data](data_dir=data_dir)
    train, valid = ((image.tobytes() for image in images.splits[split]) for split in ("train", "valid"))
    return _data.count_recurring(train, valid)


def census(data_dir: str, *, data: str = "mnist", **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of images in each split; there are no classes."""
    images = SOURCES[data](data_dir=data_dir)
    return {split: {"images": count} for split, count in images.data.samples.items()}


def _damaged_mnist(folder: Path) -> list[str]:
    if not any(folder.glob("*-images?idx3-ubyte*")):
        raise UserError(f"{folder}: contains none of MNIST's idx files; put all four there, plain or .gz")
    faults = []
    for split, expected in MNIST.items():
        try:
            _, md5 = read_idx(folder, split)
        except UserError as error:
            faults.append(str(error))
            continue
        if md5 != expected:
            faults.append(f"{folder / IMAGES[split]}: its md5 is {md5} instead of {expected}, MNIST's")
    return faults


def _damaged_mat(data: str, data_dir: str) -> list[str]:
    if not (Path(data_dir) / MATLAB[data]).exists():
        raise UserError(f"{data_dir}: contains no {MATLAB[data]}")
    try:
        SOURCES[data](data_dir=data_dir)
    except UserError as error:
        return [str(error)]
    return []


SOURCES: dict[str, Callable[..., Images]] = {"mnist": load_mnist, "curves_mat": load_curves, "faces_mat": load_faces}
MATLAB = {"curves_mat": CURVES, "faces_mat": FACES}
