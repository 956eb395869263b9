"""Small sets of idx files, as MNIST and Fashion-MNIST have them."""

import gzip
from pathlib import Path

import numpy as np

from suite.tasks._data import idx


def write_set(folder: Path, *, pack: bool = True, labelled: bool = False, **counts: int) -> None:
    """Random images of 28 × 28 pixels for each split, drawn with its count as the seed, and labels 0, 1, …, 9, 0, …"""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in counts.items():
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), np.uint8)
        files = {idx.IMAGES[split]: np.array([2051, count, 28, 28], ">u4").tobytes() + images.tobytes()}
        if labelled:
            labels = (np.arange(count) % 10).astype(np.uint8)
            files[idx.LABELS[split]] = np.array([2049, count], ">u4").tobytes() + labels.tobytes()
        for name, content in files.items():
            (folder / (f"{name}.gz" if pack else name)).write_bytes(gzip.compress(content) if pack else content)
