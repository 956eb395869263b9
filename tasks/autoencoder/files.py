"""Reads images from files: MNIST's idx format, and the MATLAB files of CURVES and FACES."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, PublicData, UserError
from suite.tasks import _data
from suite.tasks._data import idx
from suite.tasks._data.public import FASHION_MNIST, MNIST

CURVES, FACES = "digs3pts_1.mat", "newfaces_rot_single.mat"
FACES_SPLIT = (103_500, 41_400)  # first for training, last for testing (renyiryry/kbfgs_neurips2020_public)


class Images:
    """Images in memory, at most 400 MB; bytes are converted to float32 when they are read.

    Attributes:
        splits: the images as they are stored, (n, pixels).
        pixels: of one image.
    """

    def __init__(self, data: Data, splits: dict[str, np.ndarray], *, scale: float = 1.0):
        self.data, self.splits, self._scale = data, splits, np.float32(scale)
        self.pixels = splits["train"].shape[1]

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Some images, (n, pixels) float32."""
        return self.splits[split][rows].astype(np.float32) * self._scale


def _load_idx(public: PublicData, data_dir: str | None, valid: int | None = None) -> Images:
    found = idx.read_set(public.find(data_dir), public.name, labelled=False, valid=valid)
    splits = {split: images.reshape(len(images), -1) for split, images in found.images.items()}
    return Images(found.data, splits, scale=1 / 255)


def load_mnist(*, data_dir: str | None) -> Images:
    """MNIST, pixels in 0…1."""
    return _load_idx(MNIST, data_dir)


def load_fashion(*, data_dir: str | None, valid: int | None = None) -> Images:
    """Fashion-MNIST, pixels in 0…1, with all or `valid` validation images."""
    return _load_idx(FASHION_MNIST, data_dir, valid)


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


def _describe_mat(name: str, identity: str, splits: dict[str, np.ndarray]) -> Data:
    return Data("real", name, identity, {split: len(images) for split, images in splits.items()}, unit="images")


def load_curves(*, data_dir: str | None) -> Images:
    """Published CURVES: 20,000 and 10,000 images. Without a published checksum, the data has the file's name."""
    if data_dir is None:
        raise UserError(f"{CURVES} is not here; set data_dir=DIRECTORY")
    (train, valid), identity = _mat(Path(data_dir), CURVES, "bdata", "bdatatest")
    splits = {"train": train, "valid": valid}
    return Images(_describe_mat(CURVES, identity, splits), splits)


def load_faces(*, data_dir: str | None) -> Images:
    """Published FACES: 103,500 and 41,400 images. Without a published checksum, the data has the file's name."""
    if data_dir is None:
        raise UserError(f"{FACES} is not here; set data_dir=DIRECTORY")
    (images,), identity = _mat(Path(data_dir), FACES, "newfaces_single")
    images, (first, last) = images.T, FACES_SPLIT
    splits = {"train": images[:first], "valid": images[-last:]}
    return Images(_describe_mat(FACES, identity, splits), splits)


def check(data_dir: str, *, data: str = "mnist", **_: Any) -> list[str]:
    """Read the files of one source; return one line for each that is damaged, or not the published one.

    Args:
        data_dir: the directory.
        data: one of SOURCES.
        _: unused.

    Raises:
        UserError: if the directory contains none of the files.
    """
    if data in PUBLIC:
        return idx.find_faults(Path(data_dir), PUBLIC[data].name, labelled=False)
    return _damaged_mat(data, data_dir)


def count_recurring(data_dir: str, *, data: str = "mnist", valid: int | None = None, **_: Any) -> int:
    """Return how many validation images have the pixels of a training image."""
    images = _load(data, data_dir, valid)
    train, held_out = ((image.tobytes() for image in images.splits[split]) for split in ("train", "valid"))
    return _data.count_recurring(train, held_out)


def census(data_dir: str, *, data: str = "mnist", valid: int | None = None, **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of images in each split; there are no classes."""
    images = _load(data, data_dir, valid)
    return {split: {"images": count} for split, count in images.data.samples.items()}


def _load(data: str, data_dir: str, valid: int | None) -> Images:
    return SOURCES[data](data_dir=data_dir, **({} if valid is None else {"valid": valid}))


def _damaged_mat(data: str, data_dir: str) -> list[str]:
    if not (Path(data_dir) / MATLAB[data]).exists():
        raise UserError(f"{data_dir}: contains no {MATLAB[data]}")
    try:
        SOURCES[data](data_dir=data_dir)
    except UserError as error:
        return [str(error)]
    return []


SOURCES: dict[str, Callable[..., Images]] = {
    "mnist": load_mnist,
    "fashion": load_fashion,
    "curves_mat": load_curves,
    "faces_mat": load_faces,
}
PUBLIC = {"mnist": MNIST, "fashion": FASHION_MNIST}
MATLAB = {"curves_mat": CURVES, "faces_mat": FACES}
