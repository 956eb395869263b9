"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, Sizes, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    size: int | None = setting(None, "height and width of an image", affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    valid: int | None = setting(
        None, "validation images to use, the first of a fixed permutation; null: all", at_least=1, affects=PROBLEM
    )
    erase: float | None = setting(None, "probability of random erasing")
    on_error: Literal["stop", "skip"] | None = setting(None, "as in the task")


class Settings(TaskSettings):
    """Settings of ResNet-50 and its small forms."""

    variant: Literal["v1.5"] = setting(..., "which network", affects=PROBLEM)
    data: Literal["digits", "shapes", "fashion", "folder"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop", "skip"] = setting(..., "what to do with a damaged file or line")
    blocks: Sizes = setting(..., "bottlenecks of each stage", affects=PROBLEM)
    width: int = setting(..., "channels of the stem", at_least=1, affects=PROBLEM)
    bn_group: int = setting(..., "consecutive images that share batch normalisation's statistics", at_least=1)
    image_size: int = setting(..., "height and width", at_least=1, affects=PROBLEM)
    smoothing: float = setting(
        ..., "label smoothing: share of a target that all classes have alike", at_least=0, at_most=1
    )
    mixup: float = setting(..., "alpha of running mixup, whose share is Beta(alpha, alpha); 0: none", at_least=0)
    erase: float = setting(..., "probability of random erasing, for folders", at_least=0, at_most=1)
    source: Source = setting(..., "options of the data", affects=PROBLEM)
