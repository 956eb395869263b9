"""Shared code of the tasks that classify images: batches, metric and training targets. Each task adds its network.

`Classification` is NumPy; torch.py and jax.py contain `Classifier`, the part of a model around its network.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError, divide_total
from suite.tasks import _nn
from suite.tasks._data import Images, order
from suite.tasks._data.photographs import Photographs

Batch = dict[str, np.ndarray]
Read = Callable[..., tuple[np.ndarray, np.ndarray]]  # `Images.read`


class Architecture(Protocol):
    """A network's description."""

    @property
    def classes(self) -> int:
        """Number of labels."""
        ...

    @property
    def group(self) -> int:
        """Number of consecutive samples that must be on one device; 1 without batch normalisation."""
        ...

    def shapes(self) -> dict[str, Spec]:
        """Every parameter and buffer."""
        ...

    def layers(self) -> dict[str, Layer]:
        """Return the layers that a curvature method can precondition."""
        ...


class Classification:
    """Image classification; the metric is top-1 accuracy in percent on the validation split.

    A task's class adds `name` and `version`.

    Args:
        images: where the samples come from.
        architecture: the network's sizes.
        batch_size: global batch.
        eval_batch_size: batch of a validation pass.
        targets: the ladder, easiest first.
        smoothing: label smoothing.
        mixup: α of the running mixup's Beta(α, α); 0 turns it off.
    """

    def __init__(
        self,
        images: Images,
        *,
        architecture: Any,
        batch_size: int,
        eval_batch_size: int,
        targets: Sequence[float],
        smoothing: float = 0.0,
        mixup: float = 0.0,
    ):
        self.images, self.architecture = images, architecture
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.smoothing, self.mixup = smoothing, mixup
        self.targets = tuple(Target("top1", value) for value in targets)
        self.group = architecture.group  # samples that must lie on one device

    @property
    def data(self) -> Data:
        """Data of the images."""
        return self.images.data

    def shapes(self) -> dict[str, Spec]:
        """Every parameter and buffer."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Return the layers that a curvature method can precondition."""
        return self.architecture.layers()

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """Return the initial value of one parameter or buffer."""
        return _nn.draw_initial_value(self.shapes()[name], seed, name, rows)

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch: `image` (n, 3, S, S), `label` (n,), `weight`, `index`, and `mix` under mixup."""
        return self._batch(self.images.read, split, seed, index, rank, world)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation of the images as bytes; None if they are no photographs, or have no bytes."""
        return self.images.moments if isinstance(self.images, Photographs) else None

    def byte_batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Return `batch` with images that are not normalised, uint8; only if there are `moments`."""
        if not isinstance(self.images, Photographs):
            raise TypeError(f"{self.data.name}: these images are no photographs")
        return self._batch(self.images.read_bytes, split, seed, index, rank, world)

    def _batch(self, read: Read, split: str, seed: int, index: int, rank: int, world: int) -> Batch:
        samples = self.data.samples[split]
        rows, numbers, weight = order.take_share(self, samples, split, seed, index, rank, world)
        image, label = read(split, rows, seed=seed, numbers=numbers)
        batch = {"image": image, "label": label, "weight": weight, "index": numbers}
        if self.mixup and split == "train":
            batch["mix"] = self._mix(seed, index, numbers)
        return batch

    def _mix(self, seed: int, index: int, numbers: np.ndarray) -> np.ndarray:
        """λ of running mixup, one for each sample; 1 in the first batch, which has no previous batch to mix with."""
        draws = [np.random.default_rng([seed, 0x3A1C, int(n)]).beta(self.mixup, self.mixup) for n in numbers]
        return np.asarray(draws, np.float32) if index else np.ones(len(numbers), np.float32)

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """Return the previous step's images and targets for running mixup; {} without mixup."""
        if not self.mixup:
            return {}
        size, classes = self.images.size, self.architecture.classes
        return {
            "image": np.zeros((samples, 3, size, size), np.float32),
            "target": np.zeros((samples, classes), np.float32),
        }

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        """Top-1 accuracy in percent and mean cross-entropy, over the whole split; None if a logit is not finite."""
        right = loss = total = 0.0
        for part in parts:
            logits, label, weight = part["logits"].astype(np.float64), part["label"].astype(np.int64), part["weight"]
            undefined = _nn.mark_undefined(logits, weight)
            logits = np.where(np.isfinite(logits), logits, 0.0)  # without a warning of NumPy
            shifted = logits - logits.max(1, keepdims=True)
            picked = np.take_along_axis(shifted, label[:, None], 1)[:, 0]
            loss += float(weight @ (np.log(np.exp(shifted).sum(1)) - picked + undefined))
            right += float(weight @ ((logits.argmax(1) == label) + undefined))
            total += float(weight.sum())
        return {"top1": divide_total(right, total, 100.0), "loss": divide_total(loss, total)}


class AbsentImages:
    """A data set's sizes without its images, which is enough for a plan."""

    def __init__(self, data: Data, *, classes: int, size: int):
        self.data, self.classes, self.size = data, classes, size

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Raise `UserError`, because the data is absent."""
        raise UserError(f"{self.data.name}'s images are not here; set data_dir=DIRECTORY")


def check(data_dir: str, *, data: str = "folder", **options: Any) -> list[str]:
    """Read all files of a directory, as source `data` does; return one line for each that cannot be read."""
    return import_source(data).check(data_dir, **options)


def prepare(folder: Path, target: Path, **options: Any) -> None:
    """Decode a directory of photographs into shards; see `suite.tasks._data.decoding`."""
    importlib.import_module("suite.tasks._data.decoding").prepare(folder, target, **options)


def count_recurring(data_dir: str, *, data: str = "folder", **options: Any) -> int:
    """Return how many validation images of a directory are training images."""
    return import_source(data).count_recurring(data_dir, **options)


def census(data_dir: str, *, data: str = "folder", **options: Any) -> dict[str, dict[str, int]]:
    """Return the number of images of each class in each split of a directory."""
    return import_source(data).census(data_dir, **options)


def import_source(data: str) -> ModuleType:
    """Import the module of a source by its name, as in `task.data`."""
    return importlib.import_module(f"suite.tasks._data.{data}")
