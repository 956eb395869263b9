"""1,797 handwritten digits that come with scikit-learn: real images that need no download."""

import hashlib

import numpy as np

from suite.contract import Data
from suite.tasks._data.order import draw_permutation

TRAIN_SHARE = (4, 5)  # as a fraction: 1,437 of 1,797
SPLIT_SEED = 0


class Digits:
    """scikit-learn's `load_digits` (UCI optical recognition of handwritten digits, test part; 8 × 8, 17 grey levels).

    Enlarged bilinearly to `size`, three equal channels, no augmentation.
    """

    classes = 10

    def __init__(self, size: int = 32):
        """Load, enlarge and split.

        Args:
            size: height and width of the images in pixels.
        """
        from sklearn.datasets import load_digits

        flat, target = load_digits(return_X_y=True)
        pixels, labels = np.asarray(flat, np.uint8).reshape(-1, 8, 8), np.asarray(target, np.uint8)
        order = draw_permutation(len(labels), seed=SPLIT_SEED, epoch=0)
        held_out = len(labels) - len(labels) * TRAIN_SHARE[0] // TRAIN_SHARE[1]
        rows = {"train": order[held_out:], "valid": order[:held_out]}

        weights = make_interpolation_matrix(pixels.shape[1], size)
        images = np.einsum("ab,nbc,dc->nad", weights, pixels.astype(np.float32), weights, optimize=True)
        mean, deviation = images[rows["train"]].mean(), images[rows["train"]].std()
        images = ((images - mean) / deviation).astype(np.float32)

        self.size = size
        self.data = Data(
            kind="real",
            name="scikit-learn digits",
            identity=hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest(),
            samples={split: len(rows[split]) for split in rows},
            unit="images",
            note=f"{held_out} validation images are too few to compare optimizers: one is {100 / held_out:.2f} points",
        )
        self._splits = {split: (images[rows[split]], labels[rows[split]].astype(np.int32)) for split in rows}

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows; see `Images`. Nothing is random, so seed and numbers are not used."""
        images, labels = self._splits[split]
        return np.repeat(images[rows][:, None], 3, axis=1), labels[rows]


make = Digits


def make_interpolation_matrix(small: int, large: int) -> np.ndarray:
    """Bilinear enlargement of one axis as a matrix (large, small): pixel centres at half integers, edges repeated."""
    place = np.clip((np.arange(large) + 0.5) * small / large - 0.5, 0, small - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(small))).astype(np.float32)
