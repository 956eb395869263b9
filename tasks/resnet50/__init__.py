"""ImageNet ResNet-50 (He et al. 2016, v1.5), and the same network small enough for a laptop.

One builder makes both; what differs is the configuration in conf/task/resnet50.yaml. Data, initial weights and the
metric are NumPy; see CARD.md for sources, licences and targets.
"""

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError
from suite.tasks import _nn
from suite.tasks._data import Images, order
from suite.tasks.resnet50.architecture import Architecture

CITATION = "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385"
SUMMARY = "ImageNet classification with ResNet-50 v1.5"
VERSION = "1"

Batch = dict[str, np.ndarray]


class ResNet50:
    """Image classification: top-1 accuracy in percent on the validation split.

    Args:
        images: where the samples come from.
        architecture: the network's sizes.
        batch_size: global batch.
        eval_batch_size: batch of a validation pass.
        targets: the ladder, easiest first.
        smoothing: label smoothing.
        mixup: α of the running mixup's Beta(α, α); 0 turns it off.
    """

    name, version = "resnet50", VERSION

    def __init__(
        self,
        images: Images,
        *,
        architecture: Architecture,
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
        """Where the images come from."""
        return self.images.data

    def shapes(self) -> dict[str, Spec]:
        """Every parameter and buffer."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Convolutions, batch normalisations and the classifier."""
        return self.architecture.layers()

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """The initial value of one parameter or buffer."""
        return _nn.draw(self.shapes()[name], seed, name, rows)

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch: `image` (n, 3, S, S), `label` (n,), `weight`, `index`, and `mix` under mixup."""
        if split == "train":
            rows, numbers = order.take(self.data.samples[split], batch_size=self.batch_size, seed=seed, index=index)
            weight = np.ones(len(rows), np.float32)
        else:
            rows, weight = order.sweep(self.data.samples[split], batch_size=self.eval_batch_size, index=index)
            numbers = index * self.eval_batch_size + np.arange(len(rows))
        share = len(rows) // world
        mine = slice(rank * share, (rank + 1) * share)
        rows, numbers, weight = rows[mine], numbers[mine], weight[mine]
        image, label = self.images.read(split, rows, seed=seed, numbers=numbers)
        batch = {"image": image, "label": label, "weight": weight, "index": numbers.astype(np.int64)}
        if self.mixup and split == "train":
            batch["mix"] = self._mix(seed, index, numbers)
        return batch

    def _mix(self, seed: int, index: int, numbers: np.ndarray) -> np.ndarray:
        """λ of running mixup, one for each sample; 1 in the first batch, which has nothing to be mixed with."""
        draws = [np.random.default_rng([seed, 0x3A1C, int(n)]).beta(self.mixup, self.mixup) for n in numbers]
        return np.asarray(draws, np.float32) if index else np.ones(len(numbers), np.float32)

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """Running mixup's blend of the previous step; nothing otherwise."""
        if not self.mixup:
            return {}
        size, classes = self.images.size, self.architecture.classes
        return {
            "image": np.zeros((samples, 3, size, size), np.float32),
            "target": np.zeros((samples, classes), np.float32),
        }

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
        """Top-1 accuracy in percent and mean cross-entropy, over the whole split."""
        right = loss = total = 0.0
        for part in parts:
            logits, label, weight = part["logits"].astype(np.float64), part["label"].astype(np.int64), part["weight"]
            shifted = logits - logits.max(1, keepdims=True)
            picked = np.take_along_axis(shifted, label[:, None], 1)[:, 0]
            loss += float(weight @ (np.log(np.exp(shifted).sum(1)) - picked))
            right += float(weight @ (logits.argmax(1) == label))
            total += float(weight.sum())
        return {"top1": 100.0 * right / total, "loss": loss / total}


SOURCES = ("digits", "shapes", "folder")


class AbsentImageNet:
    """ImageNet's sizes without its images (Russakovsky et al. 2015, table 2): enough to say what a run would be."""

    classes = 1000
    data = Data("real", "ImageNet-1k", "not here", {"train": 1_281_167, "valid": 50_000})

    def __init__(self, size: int):
        self.size = size

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nothing can be read."""
        raise UserError("ImageNet's images are not here; type data_dir=DIRECTORY")


def check(data_dir: str) -> list[str]:
    """One line for each image file that cannot be read; decodes them all."""
    from suite.tasks._data import folder

    return folder.verify(data_dir)


def census(data_dir: str) -> dict[str, dict[str, int]]:
    """Images of each class in each split of a directory; opens none."""
    from suite.tasks._data import layout

    splits = layout.scan(data_dir).splits
    return {split: dict(Counter(file.label for file in files)) for split, files in splits.items()}


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    blocks: Sequence[int],
    width: int,
    bn_group: int,
    image_size: int,
    erase: float = 0.0,
    on_error: str = "stop",
    absent: bool = False,
    **options: Any,
) -> ResNet50:
    """The task from its configuration (conf/task/resnet50.yaml).

    Args:
        data: where the images come from, one of SOURCES.
        source: what that source's `make` takes; `image_size`, `erase` and `on_error` reach it through the YAML file.
        variant: of the model; v1.5 is the only one.
        blocks: bottlenecks in each stage.
        width: channels of the stem.
        bn_group: samples that share batch-normalisation statistics.
        image_size: height and width.
        erase: probability of random erasing, for folders.
        on_error: what to do with an unreadable image, stop or skip.
        absent: describe the task without its directory of images, as ImageNet's.
        options: of `ResNet50`.

    Raises:
        UserError: for an unknown source, variant or way to treat errors.
    """
    for name, value, known in (
        ("data", data, SOURCES),
        ("variant", variant, ("v1.5",)),
        ("on_error", on_error, ("stop", "skip")),
    ):
        if value not in known:
            raise UserError(f"task.{name}={value}: unknown; one of {', '.join(known)}")
    if erase and data != "folder":
        raise UserError(f"task.erase={erase}: only task.data=folder is augmented, not {data}")
    module = importlib.import_module(f"suite.tasks._data.{data}")
    images = AbsentImageNet(image_size) if absent else module.make(**source)
    return ResNet50(images, architecture=Architecture(tuple(blocks), width, images.classes, bn_group), **options)
