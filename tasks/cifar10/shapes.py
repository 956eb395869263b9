"""Generated images in CIFAR-10's binary format, so that its reader runs by default.

The first 10 of the 16 classes of `suite.tasks._data.shapes` at 32 pixels: four textures on a disc and on a square, two
on a triangle. Written once into the user's cache.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from suite.contract import Data
from suite.tasks._data import shapes
from suite.tasks.cifar10 import binary

ALL = 16  # classes of the generator; a row's class is the row modulo this


def write_splits(folder: Path, *, train: int, valid: int) -> None:
    """Write six binary batches, with values clipped and rounded to bytes."""
    for split, samples in (("train", train), ("valid", valid)):
        rows = np.arange(-(-samples * ALL // binary.CLASSES) + ALL)
        rows = rows[rows % ALL < binary.CLASSES][:samples]
        parts = [
            shapes.paint_images(split, rows[start : start + 128], size=binary.SIDE) for start in range(0, samples, 128)
        ]
        images, labels = (np.concatenate(values) for values in zip(*parts, strict=True))
        binary.write_split(folder, split, np.rint(255 * images.clip(0, 1)).astype(np.uint8), labels)


def make(*, train: int = 8000, valid: int = 1000) -> binary.Cifar:
    """Training and validation images, without augmentation, because a mirrored texture belongs to another class.

    Args:
        train: training images, in five batches.
        valid: validation images.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "suite" / "data"
    identity = f"shapes-{shapes.WORLD}/cifar/{train}/{valid}"
    folder = base / identity.replace("/", "-")
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=base))
        write_splits(scratch, train=train, valid=valid)
        try:
            scratch.rename(folder)
        except OSError:  # another process has created it first
            shutil.rmtree(scratch)
    note = "generated images: a stand-in that shows patterns, not CIFAR-10's accuracy"
    samples = {"train": train, "valid": valid}
    data = Data("generated", "shapes in CIFAR-10's format", identity, samples, unit="images", note=note)
    return binary.Cifar(folder, augmented=False, data=data)
