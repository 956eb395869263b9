"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    size: int | None = setting(None, "height and width of an image", affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    train: int | None = setting(None, "generated training samples", at_least=1, affects=PROBLEM)
    valid: int | None = setting(
        None,
        "generated validation samples; of fashion, those to use, the first of a fixed permutation; null: all",
        at_least=1,
        affects=PROBLEM,
    )
    classes: tuple[str, ...] | None = setting(None, "class directories to use", affects=PROBLEM)
    warp: int | None = setting(None, "size to which an image is resized before it is cropped", affects=PROBLEM)
    mean: tuple[float, ...] | None = setting(None, "mean of red, green and blue", affects=PROBLEM)
    std: tuple[float, ...] | None = setting(None, "standard deviation of red, green and blue", affects=PROBLEM)
    on_error: Literal["stop", "skip"] | None = setting(None, "as in the task")


class Settings(TaskSettings):
    """Settings of CaffeNet and its small forms."""

    variant: Literal["bvlc"] = setting(..., "which network", affects=PROBLEM)
    data: Literal["shapes", "fashion", "folder"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop", "skip"] = setting(..., "what to do with a damaged file or line")
    classes: tuple[str, ...] | None = setting(..., "class directories to use; null: all", affects=PROBLEM)
    width: int = setting(..., "channels of the first convolution", at_least=1, affects=PROBLEM)
    hidden: int = setting(..., "width of fc6 and fc7", at_least=1, affects=PROBLEM)
    init: Literal["gaussian", "fan_in"] = setting(..., "initial weights; gaussian: CaffeNet's", affects=PROBLEM)
    dropout: float = setting(..., "share of dropped outputs of fc6 and fc7", at_least=0, below=1)
    published_classes: int = setting(
        ..., "classes of the published data, used where the data is absent", at_least=1, affects=PROBLEM
    )
    head: int = setting(
        ..., "outputs of the last layer; 0: the number of classes", at_least=0, affects=PROBLEM, before=0
    )
    image_size: int = setting(..., "height and width", at_least=1, affects=PROBLEM)
    smoothing: float = setting(
        ..., "label smoothing: share of a target that all classes have alike", at_least=0, at_most=1
    )
    source: Source = setting(..., "options of the data", affects=PROBLEM)
