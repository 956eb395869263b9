"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import NOTHING, PROBLEM, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    machines: tuple[str, ...] | None = setting(
        None, "names of machines or shot lists, the training machine's first", affects=PROBLEM
    )
    shots: int | None = setting(None, "generated shots of a machine", at_least=1, affects=PROBLEM)
    radii: int | None = setting(None, "points of a profile", affects=PROBLEM)
    train_share: float | None = setting(None, "share of the shots for training", affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    signals: tuple[str, ...] | None = setting(None, "scalar signals", affects=PROBLEM)
    profiles: tuple[str, ...] | None = setting(None, "profiles", affects=PROBLEM)
    variant: Literal["0d", "1d"] | None = setting(None, "as in the task", affects=PROBLEM)
    dt: float | None = setting(None, "seconds between two steps", affects=PROBLEM)
    shortest: int | None = setting(None, "steps of the shortest shot", affects=PROBLEM)
    columns: dict[str, str] | None = setting(None, "names of the columns of tables", affects=PROBLEM)
    cache_dir: str | None = setting(None, "directory for prepared shots", affects=NOTHING, role="place")


class Settings(TaskSettings):
    """Settings of FRNN."""

    variant: Literal["0d", "1d"] = setting(..., "0d: without the profiles", affects=PROBLEM)
    data: Literal["simulated", "archive"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop", "skip"] = setting(..., "what to do with a damaged file or line")
    protocol: Literal["single", "cross", "glimpse"] = setting(
        ..., "which machines are in the training data", affects=PROBLEM
    )
    glimpse: int = setting(..., "shots of the second machine in training, under glimpse", at_least=0, affects=PROBLEM)
    filters: int = setting(..., "channels of a convolution", at_least=1, affects=PROBLEM)
    conv_layers: int = setting(..., "convolutions over a profile", at_least=1, affects=PROBLEM)
    kernel_size: int = setting(..., "width of a convolution", at_least=1, affects=PROBLEM)
    pool: int = setting(..., "width of a max-pooling", at_least=1, affects=PROBLEM)
    dense: int = setting(..., "width of the dense layer", at_least=1, affects=PROBLEM)
    hidden: int = setting(..., "width of an LSTM layer", at_least=1, affects=PROBLEM)
    lstm_layers: int = setting(..., "LSTM layers", at_least=1, affects=PROBLEM)
    activation: Literal["relu", "none"] = setting(
        ..., "after a convolution; none: as in the published code", affects=PROBLEM
    )
    dropout: float = setting(
        ..., "share of dropped elements of every LSTM's input, state and output", at_least=0, below=1
    )
    l2: float = setting(..., "penalty of the weights", at_least=0)
    length: int = setting(..., "steps of a chunk", at_least=1, affects=PROBLEM)
    target: Literal["hinge", "ttd"] = setting(..., "what the network predicts", affects=PROBLEM)
    warning: float = setting(
        ...,
        "seconds at the end of a disruptive shot in which an alarm is right, and the target positive",
        at_least=0,
        affects=PROBLEM,
    )
    deadline: float = setting(
        ...,
        "seconds at the end of a disruptive shot in which an alarm is a miss; training shots end before them",
        at_least=0,
        affects=PROBLEM,
    )
    ignore: float = setting(..., "seconds at the start of a shot without alarms", at_least=0, affects=PROBLEM)
    source: Source = setting(..., "options of the data", affects=PROBLEM)
