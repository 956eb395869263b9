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
    check_choices,
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
SOURCES = ("shapes", "fashion", "folder")
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
    """Make the task from its configuration (conf/task/caffenet.yaml).

    Args:
        data: where the images come from, one of SOURCES.
        source: options of the source's `make`.
        variant: of the model; bvlc is the only one.
        width: channels of the first convolution.
        hidden: width of fc6 and fc7.
        init: initializer of the weights, gaussian | fan_in.
        dropout: rate, on the outputs of fc6 and fc7.
        image_size: height and width.
        published_classes: of the network, for a task without its data.
        head: outputs of the last layer; 0 uses the number of classes. Further outputs belong to no image.
        classes: names of the class directories to use, for example 16 of ImageNet's WNIDs; None uses all.
        on_error: what to do with an unreadable image, stop or skip.
        absent: describe the task without its directory of images, by the sizes of the published set.
        options: of `Classification`.

    Raises:
        UserError: for an unknown source, variant or value, or a head with fewer outputs than classes.
    """
    check_choices(data=(data, SOURCES), variant=(variant, ("bvlc",)), on_error=(on_error, ("stop", "skip")))
    check_choices(init=(init, ("gaussian", "fan_in")))
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
