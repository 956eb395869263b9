"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, Sizes, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    train: int | None = setting(None, "generated training samples", at_least=1, affects=PROBLEM)
    valid: int | None = setting(
        None,
        "generated validation samples; of fashion, those to use, the first of a fixed permutation; null: all",
        at_least=1,
        affects=PROBLEM,
    )
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")


class Settings(TaskSettings):
    """Settings of the deep autoencoders."""

    variant: Literal["mnist", "curves", "faces"] = setting(..., "which network", affects=PROBLEM)
    data: Literal["curves", "faces", "mnist", "fashion", "curves_mat", "faces_mat"] = setting(
        ..., "where the data comes from", affects=PROBLEM
    )
    on_error: Literal["stop"] = setting(..., "damaged files cannot be skipped")
    widths: Sizes = setting(..., "widths from the pixels to the code; the decoder mirrors them", affects=PROBLEM)
    loss: Literal["bernoulli", "squared"] = setting(..., "loss of a pixel", affects=PROBLEM)
    penalty: float = setting(..., "tau of ½ tau |theta|², weights and biases", at_least=0, affects=PROBLEM)
    samples: dict[str, int] = setting(..., "sizes of the published data, used where it is absent", affects=PROBLEM)
    metric: Literal["loss", "objective"] = setting(
        ..., "loss of an image; objective includes the penalty", affects=PROBLEM, before="loss"
    )
    evaluate_on: Literal["valid", "train"] = setting(..., "images that are scored", affects=PROBLEM, before="valid")
    source: Source = setting(..., "options of the data", affects=PROBLEM)
