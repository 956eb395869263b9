"""ImageNet ResNet-50 (He et al. 2016, v1.5), and the same network small enough for a laptop.

One builder makes both; what differs is the configuration in conf/task/resnet50.yaml. Batches and the metric are those
of every task that classifies images; see CARD.md for sources, licences and targets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from suite.contract import UserError
from suite.tasks._data.public import FASHION_MNIST
from suite.tasks._images import (
    AbsentImages,
    Classification,
    census,
    check,
    count_recurring,
    import_source,
    prepare,
)
from suite.tasks._images.resnet import Architecture

__all__ = [
    "CITATION",
    "PARTS",
    "PUBLIC",
    "SUMMARY",
    "VERSION",
    "ResNet50",
    "census",
    "check",
    "count_recurring",
    "make",
    "prepare",
]

CITATION = "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385"
SUMMARY = "ImageNet classification with ResNet-50 v1.5"
VERSION = "1"
PARTS = "classes"  # what `census` counts samples of
PUBLIC = {"fashion": FASHION_MNIST}


class ResNet50(Classification):
    """Image classification with a ResNet of bottleneck blocks."""

    name, version = "resnet50", VERSION

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
    image_size: int,
    erase: float = 0.0,
    on_error: str = "stop",
    absent: bool = False,
    **options: Any,
) -> ResNet50:
    """Make the task from its settings, which settings.py explains.

    `absent` describes it without its directory, by the published sizes; `options` are those of `Classification`.

    Raises:
        UserError: for random erasing of a source without augmentation.
    """
    if erase and data != "folder":
        raise UserError(f"task.erase={erase}: only task.data=folder has augmentation; set task.erase=0")
    module = import_source(data)
    images = (
        AbsentImages(module.PUBLISHED, classes=module.CLASSES, size=image_size) if absent else module.make(**source)
    )
    return ResNet50(images, architecture=Architecture(tuple(blocks), width, images.classes, bn_group), **options)
