"""Where samples come from, in NumPy. One module per source; a task chooses one and never asks which it is.

`digits` (real, bundled with scikit-learn), `shapes` (generated) and `folder` (real, ImageNet's layout) are `Images`.
`order` says which sample stands where in a run, `augment` how one is distorted.
"""

from typing import Protocol

import numpy as np

from suite.contract import Data


class Images(Protocol):
    """Labelled square images in a training and a validation split. Opening one makes no random choice."""

    @property
    def classes(self) -> int:
        """Number of labels; they run from 0."""
        ...

    @property
    def size(self) -> int:
        """Height and width in pixels; an image is (3, size, size)."""
        ...

    @property
    def data(self) -> Data:
        """What this is, with its checksum or version, and `samples` for the splits `train` and `valid`."""
        ...

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows: a pure function of its arguments and the source.

        Args:
            split: `train`, where images are augmented, or `valid`, where they are not.
            rows: (n,) integers below `data.samples[split]`, in any order, repetition allowed.
            seed: the run's seed.
            numbers: (n,) each sample's number in the run. With the seed it is the key of every augmentation, so
                that a sample looks the same whatever the batch size, the rank or the number of workers.

        Returns:
            Images (n, 3, size, size) float32, normalised, and labels (n,) int32.

        Raises:
            UserError: a sample cannot be read.
        """
        ...
