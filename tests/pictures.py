"""Reading from image sources."""

from typing import Any

import numpy as np


def read(source: Any, split: str, rows: Any, seed: int = 3, first: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of some rows, as samples `first` onwards of a run."""
    rows = np.asarray(rows)
    return source.read(split, rows, seed=seed, numbers=first + np.arange(len(rows)))
