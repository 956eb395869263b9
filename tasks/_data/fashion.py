"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), or other labelled images in its format: 28 × 28 grey pixels."""

from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks import _data
from suite.tasks._data import idx
from suite.tasks._data.digits import make_interpolation_matrix
from suite.tasks._data.public import FASHION_MNIST

CLASSES = 10
PUBLISHED = Data("real", "Fashion-MNIST", "not here", {"train": 60_000, "valid": 10_000}, unit="images")


class Fashion:
    """Images that stay in memory as bytes (55 MB), and are enlarged when they are read.

    Enlarged bilinearly to `size`, three equal channels, no augmentation, normalised by the training pixels.
    """

    classes = CLASSES

    def __init__(self, size: int = 32, *, data_dir: str | None = None, valid: int | None = None):
        """Read both splits.

        Args:
            size: height and width of the images in pixels.
            data_dir: the directory of the files; None finds what was fetched or installed.
            valid: number of validation images; see `idx.read_set`.

        Raises:
            UserError: if the files are missing or damaged, or the images are not square and of ten classes.
        """
        folder = FASHION_MNIST.find(data_dir)
        found = idx.read_set(folder, PUBLISHED.name, labelled=True, valid=valid)
        train = found.images["train"]
        if train.shape[1] != train.shape[2]:
            raise UserError(f"{folder}: its images have {train.shape[1:]} pixels, but must be square")
        for split, labels in found.labels.items():
            if labels.max() >= CLASSES:
                path = folder / idx.LABELS[split]
                raise UserError(f"{path}: label {labels.max()} is not in 0 to {CLASSES - 1}; download it again")
        counts = sum(np.bincount(image.reshape(-1), minlength=256) for image in np.array_split(train, 64))
        levels = np.arange(256)
        mean = np.average(levels, weights=counts)
        self._mean = np.float32(mean)
        self._deviation = np.float32(np.sqrt(np.average((levels - mean) ** 2, weights=counts)))
        self._enlarge = make_interpolation_matrix(train.shape[1], size)
        self._images, self._labels, self.data, self.size = found.images, found.labels, found.data, size

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows; see `Images`. Nothing is random, so seed and numbers are not used."""
        # products of one image each, so that its bits do not depend on the batch
        images = self._enlarge @ self._images[split][rows].astype(np.float32) @ self._enlarge.T
        images -= self._mean
        images /= self._deviation
        return np.repeat(images[:, None], 3, axis=1), self._labels[split][rows].astype(np.int32)


make = Fashion


def check(data_dir: str | Path, **_: Any) -> list[str]:
    """Return one line for each file that is damaged or not Fashion-MNIST's."""
    return idx.find_faults(Path(data_dir), PUBLISHED.name, labelled=True)


def count_recurring(data_dir: str | Path, *, valid: int | None = None, **_: Any) -> int:
    """Return how many validation images have the pixels of a training image."""
    images = idx.read_set(Path(data_dir), PUBLISHED.name, labelled=True, valid=valid).images
    train, held_out = ((image.tobytes() for image in images[split]) for split in ("train", "valid"))
    return _data.count_recurring(train, held_out)


def census(data_dir: str | Path, *, valid: int | None = None, **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of images of each class in each split."""
    labels = idx.read_set(Path(data_dir), PUBLISHED.name, labelled=True, valid=valid).labels
    counts = {split: np.bincount(values, minlength=CLASSES).tolist() for split, values in labels.items()}
    return {split: {str(label): count for label, count in enumerate(numbers)} for split, numbers in counts.items()}
