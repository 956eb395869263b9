"""Reads CIFAR-10's two formats, binary batches and Python batches, into memory as bytes.

A binary record is a label and 3 × 32 × 32 bytes, red first. A Python batch is a pickled dictionary with `data`
(n, 3072) and `labels`. Pickles can execute code, so only the classes in `ALLOWED` are unpickled.
"""

import filecmp
import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks import _data
from suite.tasks._data import augment
from suite.tasks._data.public import CIFAR_10

SIDE, CLASSES = 32, 10
RECORD = 1 + 3 * SIDE * SIDE
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "valid": ["test_batch"]}
FOLDERS = {".bin": "cifar-10-batches-bin", "": "cifar-10-batches-py"}
# of the 50,000 training images in 0…1, red, green and blue
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
# md5 of the Python batches, as torchvision compares them; none is published for the binary batches
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
UNKNOWN = "images in CIFAR-10's format; only the Python batches of CIFAR-10 have published checksums"
PAD = 4  # pixels of black around a training image before it is cut (He et al. 2016, §4.2)
ALLOWED = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
ALLOWED |= {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _Arrays(pickle.Unpickler):
    """Unpickles arrays only, and nothing that can execute code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def _python(content: bytes) -> np.ndarray:
    """Records (n, RECORD) of a Python batch.

    Raises:
        ValueError: if pixels or labels are not whole numbers of one byte, the shape is another, the file names of the
            images are not as many, or something follows.
    """
    file = io.BytesIO(content)
    batch = _Arrays(file, encoding="latin1").load()
    if rest := len(content) - file.tell():
        raise ValueError(f"{rest:,} bytes follow the batch")
    data, labels = (_whole(name, np.asarray(batch[name])) for name in ("data", "labels"))
    if labels.ndim != 1 or data.shape != (len(labels), RECORD - 1):
        shapes = f"data of shape {data.shape} and labels of shape {labels.shape}"
        raise ValueError(f"{shapes} instead of (n, {RECORD - 1}) and (n,)")
    if "filenames" in batch and len(batch["filenames"]) != len(labels):
        raise ValueError(f"{len(batch['filenames']):,} filenames for {len(labels):,} labels")
    return np.concatenate([labels[:, None], data], 1)


def _whole(name: str, values: np.ndarray) -> np.ndarray:
    """Return values as bytes, which they must equal."""
    if values.dtype.kind not in "iu" or (values.size and not 0 <= values.min() <= values.max() <= 255):
        raise ValueError(f"{name} must be whole numbers in 0 to 255, but their type is {values.dtype}")
    return values.astype(np.uint8)


def _records(path: Path) -> np.ndarray:
    """Records (n, RECORD) of one file.

    Raises:
        UserError: if it is damaged.
    """
    content = path.read_bytes()
    if path.suffix == ".bin":
        if not content or len(content) % RECORD:
            raise UserError(
                f"{path}: {len(content):,} bytes are not a multiple of the record size, {RECORD:,}; download it again"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    else:
        try:
            records = _python(content)
        except Exception as error:  # a damaged pickle raises anything
            cause = " ".join(str(error).split())
            raise UserError(f"{path}: not a readable batch of CIFAR-10: {cause}; download it again") from error
    if (wrong := np.flatnonzero(records[:, 0] >= CLASSES)).size:
        raise UserError(f"{path}, record {wrong[0] + 1}: label {records[wrong[0], 0]} is not in 0 to 9")
    return records


def _is_published(path: Path) -> bool:
    """Return whether a file is one of CIFAR-10's Python batches, by its checksum."""
    with path.open("rb") as file:
        return path.name in MD5 and hashlib.file_digest(file, "md5").hexdigest() == MD5[path.name]


def find_files(data_dir: str | Path | None) -> dict[str, list[Path]]:
    """Find the batch files of each split, in the directory itself or in the folder that the archive creates.

    Raises:
        UserError: if a file is missing, there is a further batch, two are the same file, or no directory is set and
            CIFAR-10 was not fetched.
    """
    root = CIFAR_10.find(data_dir)
    for suffix, folder in FOLDERS.items():
        for place in (root, root / folder):
            if (place / f"data_batch_1{suffix}").is_file():
                files = {split: [place / f"{name}{suffix}" for name in names] for split, names in BATCHES.items()}
                missing = [path for paths in files.values() for path in paths if not path.is_file()]
                if missing:
                    raise UserError(f"{missing[0]}: missing; all six batches of CIFAR-10 are needed")
                _reject_others(place, suffix, [path for paths in files.values() for path in paths])
                return files
    raise UserError(f"{root}: contains neither {' nor '.join(FOLDERS.values())}; set data_dir=DIRECTORY")


def _reject_others(folder: Path, suffix: str, batches: list[Path]) -> None:
    """Raise `UserError` for a batch that is not among the six, and for one that is a copy of another."""
    if others := sorted({path for path in folder.glob(f"*_batch*{suffix}") if path.suffix == suffix} - {*batches}):
        raise UserError(f"{others[0]}: CIFAR-10 has no such batch, and it would not be read; move it elsewhere")
    first: dict[bytes, Path] = {}
    for path in batches:
        with path.open("rb") as file:
            same = first.setdefault(file.read(RECORD), path)
        if same != path and filecmp.cmp(same, path, shallow=False):
            raise UserError(f"{path}: has the same contents as {same.name}; download one of them again")


class Cifar:
    """CIFAR-10's images, or others in its format.

    Training images are padded with PAD black pixels, cropped at random, and mirrored with probability ½; validation
    images are not changed.
    """

    classes, size = CLASSES, SIDE

    def __init__(self, data_dir: str | Path | None, *, augmented: bool = True, data: Data | None = None):
        """Read all batches, 180 MB at most.

        Args:
            data_dir: the directory of the files.
            augmented: whether training images are cropped and mirrored.
            data: describes other data in this format; None for CIFAR-10.

        Raises:
            UserError: if a file is missing or damaged.
        """
        files = find_files(data_dir)
        read = {split: np.concatenate([_records(path) for path in paths]) for split, paths in files.items()}
        digest = hashlib.sha256(b"".join(records.tobytes() for records in read.values())).hexdigest()
        samples = {split: len(records) for split, records in read.items()}
        self._records, self._augmented = read, augmented
        published = all(_is_published(path) for paths in files.values() for path in paths)
        name, note = ("CIFAR-10", "") if published else ("cifar10-batches", UNKNOWN)
        self.data = data or Data("real", name, digest, samples, unit="images", note=note)

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows; see `Images`."""
        records = self._records[split][rows]
        images = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
        if split == "train" and self._augmented:
            images = np.stack([self._distorted(image, seed, int(n)) for image, n in zip(images, numbers, strict=True)])
        mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (MEAN, STD))
        return (images.astype(np.float32) / np.float32(255) - mean) / std, records[:, 0].astype(np.int32)

    def _distorted(self, image: np.ndarray, seed: int, number: int) -> np.ndarray:
        draws = augment.make_generator(seed, number)
        top, left = (int(draws.random() * (2 * PAD + 1)) for _ in range(2))
        framed = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)))[:, top : top + SIDE, left : left + SIDE]
        return framed[:, :, ::-1] if augment.draw_flip(draws) else framed


def write_split(folder: Path, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write a split as binary batches.

    Args:
        folder: the directory to write to.
        split: train, written as five files, or valid.
        images: (n, 3, 32, 32) uint8.
        labels: (n,) below 10.
    """
    records = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], 1)
    for name, part in zip(BATCHES[split], np.array_split(records, len(BATCHES[split])), strict=True):
        part.tofile(folder / f"{name}.bin")


def make(*, data_dir: str | None, augmented: bool = True) -> Cifar:
    """Open CIFAR-10 in a directory."""
    return Cifar(data_dir, augmented=augmented)


def check(data_dir: str, **_: Any) -> list[str]:
    """One line for each damaged batch."""
    faults = []
    for path in (path for paths in find_files(data_dir).values() for path in paths):
        try:
            _records(path)
        except UserError as error:
            faults.append(str(error))
    return faults


def count_recurring(data_dir: str, **_: Any) -> int:
    """Return how many validation images have the pixels of a training image."""
    images = {
        split: (record.tobytes() for path in paths for record in _records(path)[:, 1:])
        for split, paths in find_files(data_dir).items()
    }
    return _data.count_recurring(images["train"], images["valid"])


def census(data_dir: str, **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of images of each class in each split."""
    counts = {}
    for split, paths in find_files(data_dir).items():
        labels = np.concatenate([_records(path)[:, 0] for path in paths])
        counts[split] = {
            str(label): int(count) for label, count in zip(*np.unique(labels, return_counts=True), strict=True)
        }
    return counts
