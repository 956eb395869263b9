"""CIFAR-10 (Krizhevsky 2009) with the ResNet-18 of its papers, and a narrow version for a laptop.

The network is a ResNet of two 3×3 convolutions a block; batches and metric are those of every task that classifies
images. See CARD.md for sources, licences and targets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from suite.contract import Data
from suite.tasks._data.public import CIFAR_10
from suite.tasks._images import AbsentImages, Classification
from suite.tasks._images.resnet import Architecture
from suite.tasks.cifar10 import binary, shapes

CITATION = "Krizhevsky: Learning Multiple Layers of Features from Tiny Images, technical report, 2009"
SUMMARY = "CIFAR-10 classification with ResNet-18"
VERSION = "1"
PARTS = "classes"  # what `census` counts samples of
SOURCES: Mapping[str, Any] = {"shapes": shapes, "cifar10": binary}
census, check, count_recurring = binary.census, binary.check, binary.count_recurring
PUBLIC = {"cifar10": CIFAR_10}
PUBLISHED = Data("real", "CIFAR-10", "not here", {"train": 50_000, "valid": 10_000}, unit="images")


class Cifar10(Classification):
    """Image classification with a small ResNet."""

    name, version = "cifar10", VERSION

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one image leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.architecture.count_kept_bytes(value, self.images.size)


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    blocks: Sequence[int],
    width: int,
    bn_group: int,
    absent: bool = False,
    on_error: str = "stop",
    **options: Any,
) -> Cifar10:
    """Make the task from its settings, which settings.py explains.

    `absent` describes it without its directory; `options` are those of `Classification`.
    """
    images = AbsentImages(PUBLISHED, classes=10, size=32) if absent else SOURCES[data].make(**source)
    architecture = Architecture(tuple(blocks), width, images.classes, bn_group, bottleneck=False, small=True)
    return Cifar10(images, architecture=architecture, **options)
