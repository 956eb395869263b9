"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, Sizes, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    train: int | None = setting(None, "generated training samples", at_least=1, affects=PROBLEM)
    valid: int | None = setting(None, "generated validation samples", at_least=1, affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    augmented: bool | None = setting(None, "whether images are cropped and mirrored at random", affects=PROBLEM)


class Settings(TaskSettings):
    """Settings of ResNet-18 on CIFAR-10 and its small forms."""

    variant: Literal["resnet18"] = setting(..., "which network", affects=PROBLEM)
    data: Literal["shapes", "cifar10"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop"] = setting(..., "damaged files cannot be skipped")
    blocks: Sizes = setting(..., "blocks of each stage", affects=PROBLEM)
    width: int = setting(..., "channels of the stem", at_least=1, affects=PROBLEM)
    bn_group: int = setting(..., "consecutive images that share batch normalisation's statistics", at_least=1)
    smoothing: float = setting(
        ..., "label smoothing: share of a target that all classes have alike", at_least=0, at_most=1
    )
    mixup: float = setting(..., "alpha of running mixup, whose share is Beta(alpha, alpha); 0: none", at_least=0)
    source: Source = setting(..., "options of the data", affects=PROBLEM)
