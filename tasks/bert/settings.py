"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    train: int | None = setting(None, "generated training samples", at_least=1, affects=PROBLEM)
    valid: int | None = setting(None, "generated validation samples", at_least=1, affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    on_error: Literal["stop", "skip"] | None = setting(None, "as in the task")


class Sparse(Options):
    """Options of block-sparse matrices (Dietrich et al. 2021)."""

    share: float = setting(..., "share of a matrix's blocks that are zero", at_least=0, at_most=1, affects=PROBLEM)
    block: int = setting(..., "rows and columns of a block", at_least=1, affects=PROBLEM)
    pattern: Literal["random", "balanced"] = setting(
        ..., "balanced: equally many in each row of blocks", affects=PROBLEM
    )
    growth: Literal["random", "gradient"] = setting(
        ..., "new blocks: anywhere, or where it is largest", affects=PROBLEM
    )
    ratio: float = setting(..., "initial share of blocks that move", at_least=0, at_most=1, affects=PROBLEM)
    intervals: int = setting(..., "intervals of the run; blocks move between them", at_least=1, affects=PROBLEM)
    steps: int = setting(..., "steps of the run", at_least=1)
    execution: Literal["blocks", "dense", "auto"] = setting(..., "products of blocks, or with zeros filled in")
    scale_rate: bool = setting(..., "multiply the learning rate by exp(1.969 s² + 0.2905 s)")


class Settings(TaskSettings):
    """Settings of BERT."""

    variant: str = setting(..., "which network", affects=PROBLEM)
    data: Literal["hmm", "records"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop", "skip"] = setting(..., "what to do with a damaged file or line")
    layers: int = setting(..., "layers of the encoder", at_least=1, affects=PROBLEM)
    hidden: int = setting(..., "width of the residual stream", at_least=1, affects=PROBLEM)
    heads: int = setting(..., "heads of an attention", at_least=1, affects=PROBLEM)
    intermediate: int = setting(..., "width of the hidden layer", at_least=1, affects=PROBLEM)
    positions: int = setting(..., "rows of the table of positions", at_least=1, affects=PROBLEM)
    pre_norm: bool = setting(..., "LayerNorm before each sub-layer", affects=PROBLEM)
    deep_init: bool = setting(
        ..., "initialise matrices that write into the residual stream with 0.02 / sqrt(2 layers)", affects=PROBLEM
    )
    dropout: float = setting(
        ...,
        "share of dropped elements of embeddings, attention probabilities and sub-layers' outputs",
        at_least=0,
        below=1,
    )
    sequence: int = setting(..., "tokens of a record", at_least=1, affects=PROBLEM)
    predictions: int = setting(..., "most tokens of a record that are predicted", at_least=1, affects=PROBLEM)
    probability: float = setting(
        ...,
        "share of a record's tokens that are predicted, [CLS] and [SEP] counted; at least one token is",
        at_least=0,
        at_most=1,
        affects=PROBLEM,
    )
    whole_word: bool = setting(..., "mask all pieces of a word", affects=PROBLEM)
    next_sentence: bool = setting(
        ..., "two segments of a record, and a head that predicts whether they belong together", affects=PROBLEM
    )
    sparsity: Literal["dense", "static", "dynamic"] = setting(
        ..., "of the encoder's matrices; dynamic: blocks move during training", affects=PROBLEM
    )
    sparse: Sparse = setting(..., "options of sparse matrices", affects=PROBLEM)
    source: Source = setting(..., "options of the data", affects=PROBLEM)
