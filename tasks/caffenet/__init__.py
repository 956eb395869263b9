"""CaffeNet (Jia et al. 2014) on ImageNet or some of its classes, and the same network small enough for a laptop.

Batches and metric are those of `tasks/_images`; see CARD.md for sources, licences and targets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from suite.contract import UserError
from suite.tasks import _nn
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
from suite.tasks.caffenet.architecture import Architecture

__all__ = [
    "CITATION",
    "PARTS",
    "PUBLIC",
    "SUMMARY",
    "VERSION",
    "CaffeNet",
    "census",
    "check",
    "count_recurring",
    "make",
    "prepare",
]

CITATION = (
    "Jia et al.: Caffe: Convolutional Architecture for Fast Feature Embedding, 2014, arXiv:1408.5093; Krizhevsky, "
    "Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, NeurIPS 2012"
)
SUMMARY = "ImageNet classification, or 16 classes of it, with CaffeNet"
VERSION = "2"  # since dropout draws two elements a word
keeps_result = _nn.keeps_result
PARTS = "classes"  # what `census` counts samples of
PUBLIC = {"fashion": FASHION_MNIST}


class CaffeNet(Classification):
    """Image classification with CaffeNet.

    Attributes:
        dropout: rate, on the outputs of fc6 and fc7.
    """

    name, version = "caffenet", VERSION
    dropout: float

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one image leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.architecture.count_kept_bytes(value)


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    width: int,
    hidden: int,
    init: str,
    dropout: float,
    image_size: int,
    published_classes: int,
    head: int = 0,
    classes: Sequence[str] | None = None,
    on_error: str = "stop",
    absent: bool = False,
    **options: Any,
) -> CaffeNet:
    """Make the task from its settings, which settings.py explains.

    `absent` describes it without its directory, by the published sizes; `options` are those of `Classification`.

    Raises:
        UserError: for classes of a source without class directories, or a head with fewer outputs than classes.
    """
    if classes and data != "folder":
        raise UserError(f"task.classes: selects class directories, but task.data={data} has none; set task.data=folder")
    module = import_source(data)
    if absent:
        count = len(classes or ()) or published_classes
        whole = module.PUBLISHED
        samples = {split: number * count // module.CLASSES for split, number in whole.samples.items()}
        images = AbsentImages(replace(whole, samples=samples), classes=count, size=image_size)
    else:
        images = module.make(**source)
    outputs = head or images.classes
    if outputs < images.classes:
        raise UserError(
            f"task.head={head}: fewer outputs than the {images.classes} classes of the data; set task.head=0 "
            "to use the number of classes"
        )
    task = CaffeNet(images, architecture=Architecture(width, hidden, outputs, image_size, init), **options)
    task.dropout = dropout
    return task
