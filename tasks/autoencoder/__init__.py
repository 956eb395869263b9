"""Deep autoencoders (Hinton and Salakhutdinov 2006), at full size, trained as by Goldfarb, Ren and Bahamou 2020.

architecture.py describes the networks; curves.py and faces.py generate images, files.py reads them. See CARD.md for
sources, licences and targets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError, divide_total
from suite.tasks import _nn
from suite.tasks._data import order
from suite.tasks.autoencoder import curves, faces, files
from suite.tasks.autoencoder.architecture import Architecture
from suite.tasks.autoencoder.files import PUBLIC, census, check, count_recurring

__all__ = [
    "CITATION",
    "PARTS",
    "PUBLIC",
    "SUMMARY",
    "VERSION",
    "Autoencoder",
    "census",
    "check",
    "count_recurring",
    "make",
]

CITATION = (
    "Hinton, Salakhutdinov: Reducing the Dimensionality of Data with Neural Networks, Science 2006; Goldfarb, Ren, "
    "Bahamou: Practical Quasi-Newton Methods for Training Deep Neural Networks, NeurIPS 2020, arXiv:2006.08877"
)
SUMMARY = "deep autoencoders of MNIST, Fashion-MNIST, CURVES and FACES"
VERSION = "1"
PARTS = "classes"  # what `census` counts samples of

Batch = dict[str, np.ndarray]


class Images(Protocol):
    """A source of images."""

    data: Data
    pixels: int

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Some images, (n, pixels) float32."""
        ...


class Autoencoder:
    """Compress images to a short code and reconstruct them; the metric is the loss per image on the validation split.

    Args:
        images: where the samples come from.
        architecture: the network's widths, loss and penalty.
        batch_size: global batch.
        eval_batch_size: batch of a validation pass.
        targets: the ladder, easiest first.
        metric: the ladder's metric: `loss`, or `objective`, which includes the penalty.
        evaluate_on: the split of a validation pass: valid | train.
    """

    name, version, group = "autoencoder", VERSION, 1

    def __init__(
        self,
        images: Images,
        *,
        architecture: Architecture,
        batch_size: int,
        eval_batch_size: int,
        targets: Sequence[float],
        metric: str = "loss",
        evaluate_on: str = "valid",
    ):
        self.images, self.architecture = images, architecture
        self.batch_size, self.eval_batch_size, self.evaluate_on = batch_size, eval_batch_size, evaluate_on
        self.targets = tuple(Target(metric, value, higher_is_better=False) for value in targets)

    @property
    def data(self) -> Data:
        """Data of the images."""
        data = self.images.data
        if self.evaluate_on == "valid":
            return data
        note = "; ".join(filter(None, [data.note, "measured on the training images"]))
        return replace(data, note=note)

    def _split(self, split: str) -> str:
        return split if split == "train" else self.evaluate_on

    def shapes(self) -> dict[str, Spec]:
        """Every parameter; there are no buffers."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Every layer of the network."""
        return self.architecture.layers()

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one image leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.architecture.count_kept_bytes(value)

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """Return the initial value of one parameter."""
        return _nn.draw_initial_value(self.shapes()[name], seed, name, rows)

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch: `image` (n, pixels) float32, `weight` and `index` (n,)."""
        samples = self.data.samples[self._split(split)]
        rows, numbers, weight = order.take_share(self, samples, split, seed, index, rank, world)
        image = self.images.read(self._split(split), rows)
        return {"image": image, "weight": weight, "index": numbers}

    def batches(self, split: str) -> int:
        """Batches in one validation pass; the last one is padded, whereas the published code drops it."""
        return -(-self.data.samples[self._split(split)] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """{}: nothing is carried from batch to batch."""
        return {}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        """Over the whole split: mean loss per image, without and with the penalty, and mean squared error per pixel.

        All are None if the loss, the error or the penalty of an image is not finite.
        """
        sums, total = np.zeros(3), 0.0
        for part in parts:
            weight = part["weight"].astype(np.float64)
            each = np.stack([part[name].astype(np.float64) for name in ("loss", "error", "penalty")])
            sums += [float(weight @ values) for values in np.where(weight, each, 0.0)]
            total += float(weight.sum())
        loss, error, penalty = sums if np.isfinite(sums).all() else np.full(3, np.nan)
        means = {"loss": loss, "objective": loss + penalty, "squared_error": error}
        return {name: divide_total(float(value), total) for name, value in means.items()}


class AbsentImages:
    """Sizes of a data set without its images, which is enough for a plan."""

    def __init__(self, name: str, pixels: int, samples: Mapping[str, int]):
        self.pixels = pixels
        self.data = Data("real", name, "not here", samples, unit="images")

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Raise `UserError`, because the data is absent."""
        raise UserError(f"{self.data.name} is not here; set data_dir=DIRECTORY")


SOURCES: dict[str, Callable[..., Images]] = {
    "curves": curves.make,
    "faces": faces.make,
    **files.SOURCES,
}


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    widths: Sequence[int],
    loss: str,
    penalty: float,
    samples: Mapping[str, int],
    absent: bool = False,
    on_error: str = "stop",
    **options: Any,
) -> Autoencoder:
    """Make the task from its settings, which settings.py explains.

    `absent` describes it without its files; `options` are those of `Autoencoder`.

    Raises:
        UserError: for images that do not fit the network.
    """
    images = AbsentImages(data, widths[0], samples) if absent else SOURCES[data](**source)
    if images.pixels != widths[0]:
        raise UserError(
            f"task.data={data}: its images have {images.pixels} pixels, but task.variant={variant} needs {widths[0]}; "
            "set another task.variant"
        )
    return Autoencoder(images, architecture=Architecture(tuple(widths), loss, penalty), **options)
