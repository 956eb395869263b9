"""Batches of photographs, normalised or as bytes: what directories of files and shards have in common."""

from abc import ABC, abstractmethod

import numpy as np

from suite.tasks._data.preprocessing import Preprocessing


class Photographs(ABC):
    """A source of photographs; a subclass reads them.

    Args:
        preprocessing: makes a network's input from each.
    """

    def __init__(self, preprocessing: Preprocessing):
        self.preprocessing, self.size = preprocessing, preprocessing.size

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation that normalise bytes, (3, 1, 1) float32 each.

        None with random erasing, whose zeros come after the normalisation, so that no byte stands for them.
        """
        return None if self.preprocessing.erase else self.preprocessing.moments

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows; see `Images`."""
        images = np.empty((len(rows), 3, self.size, self.size), np.float32)
        return images, self.fill_images(images, split, rows, seed=seed, numbers=numbers)

    def read_bytes(
        self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the images of `read` before their normalisation, uint8, and their labels."""
        images = np.empty((len(rows), 3, self.size, self.size), np.uint8)
        return images, self.fill_images(images, split, rows, seed=seed, numbers=numbers)

    @abstractmethod
    def fill_images(
        self, images: np.ndarray, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray
    ) -> np.ndarray:
        """Write some rows into `images` (n, 3, size, size), float32 or uint8, and return their labels (n,) int32."""
