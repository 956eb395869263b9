"""CaffeNet (Jia et al. 2014) on ImageNet or some of its classes, and the same network small enough for a laptop.

Batches and metric are those of every task that classifies images; see CARD.md for sources, licences and targets.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from suite.contract import UserError
from suite.tasks._images import IMAGENET, AbsentImages, Classification, census, check, known
from suite.tasks.caffenet.architecture import Architecture

__all__ = ["CITATION", "SUMMARY", "VERSION", "CaffeNet", "census", "check", "make"]

CITATION = (
    "Jia et al.: Caffe: Convolutional Architecture for Fast Feature Embedding, 2014, arXiv:1408.5093; Krizhevsky, "
    "Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, NeurIPS 2012"
)
SUMMARY = "ImageNet classification, or 16 classes of it, with CaffeNet"
VERSION = "1"
SOURCES = ("shapes", "folder")


class CaffeNet(Classification):
    """Image classification with CaffeNet.

    Attributes:
        dropout: of fc6's and fc7's outputs.
    """

    name, version = "caffenet", VERSION
    dropout: float


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
    classes: Sequence[str] | None = None,
    on_error: str = "stop",
    absent: bool = False,
    **options: Any,
) -> CaffeNet:
    """The task from its configuration (conf/task/caffenet.yaml).

    Args:
        data: where the images come from, one of SOURCES.
        source: what that source's `make` takes.
        variant: of the model; bvlc is the only one.
        width: channels of the first convolution.
        hidden: width of fc6 and fc7.
        init: how weights start, gaussian | fan_in.
        dropout: of their outputs.
        image_size: height and width.
        published_classes: of the network, for a task without its data.
        classes: names of the class directories to use, for example 16 of ImageNet's WNIDs; all by default.
        on_error: what to do with an unreadable image, stop or skip.
        absent: describe the task without its directory of images, as ImageNet's.
        options: of `Classification`.

    Raises:
        UserError: for an unknown source, variant or way to treat errors.
    """
    known(data=(data, SOURCES), variant=(variant, ("bvlc",)), on_error=(on_error, ("stop", "skip")))
    known(init=(init, ("gaussian", "fan_in")))
    if classes and data != "folder":
        raise UserError(f"task.classes: chosen from directories; task.data={data} has none")
    absent_images = AbsentImages(IMAGENET, classes=len(classes or ()) or published_classes, size=image_size)
    images = absent_images if absent else importlib.import_module(f"suite.tasks._data.{data}").make(**source)
    made = CaffeNet(images, architecture=Architecture(width, hidden, images.classes, image_size, init), **options)
    made.dropout = dropout
    return made
