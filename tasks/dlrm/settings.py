"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, Sizes, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    train: int | None = setting(None, "generated training samples", at_least=1, affects=PROBLEM)
    valid: int | None = setting(None, "generated validation samples", at_least=1, affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    logs: Literal["kaggle", "terabyte"] | None = setting(None, "which of Criteo's logs", affects=PROBLEM)


class Settings(TaskSettings):
    """Settings of DLRM."""

    variant: Literal["v1", "v2"] = setting(
        ..., "v1: products of pairs; v2: DCNv2's cross network, several ids a feature", affects=PROBLEM
    )
    data: Literal["clicks", "criteo"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop", "skip"] = setting(..., "what to do with a damaged file or line")
    placement: Literal["replicated", "rows"] = setting(..., "placement of the tables")
    width: int = setting(..., "width of an embedding", at_least=1, affects=PROBLEM)
    bottom: Sizes = setting(..., "widths of the bottom network", affects=PROBLEM)
    top: Sizes = setting(..., "widths of the top network", affects=PROBLEM)
    interaction: Literal["dot", "cross"] = setting(..., "how features are combined", affects=PROBLEM)
    hots: Sizes = setting(..., "ids of each feature; one number holds for all", affects=PROBLEM)
    cross_layers: int = setting(..., "layers of the cross network", at_least=0, affects=PROBLEM)
    cross_rank: int = setting(..., "rank of its matrices", at_least=1, affects=PROBLEM)
    limit: int | None = setting(
        ...,
        "largest number of rows of a table; ids are taken modulo the rows; null: no limit",
        at_least=1,
        affects=PROBLEM,
    )
    published_rows: Sizes = setting(
        ..., "rows of the published tables, used where the logs are absent", affects=PROBLEM
    )
    source: Source = setting(..., "options of the data", affects=PROBLEM)
