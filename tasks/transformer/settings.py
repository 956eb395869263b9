"""Settings of a task; its YAML file in conf/task gives their values for each scale and data."""

from typing import Literal

from suite.declared import PROBLEM, setting
from suite.nodes import Options, TaskSettings


class Source(Options):
    """Options of the data; each source reads some of them."""

    train: int | None = setting(None, "generated training samples", at_least=1, affects=PROBLEM)
    valid: int | None = setting(None, "generated validation samples", at_least=1, affects=PROBLEM)
    ambiguity: float | None = setting(None, "as in the task", affects=PROBLEM)
    data_dir: str | None = setting(None, "directory of the files", affects=PROBLEM, role="place")
    languages: tuple[str, str] | None = setting(None, "from, to", affects=PROBLEM)
    length: int | None = setting(None, "words of a pair, including the end", affects=PROBLEM)
    held_out: Literal["valid", "test"] | None = setting(None, "split that BLEU is measured on", affects=PROBLEM)


class Settings(TaskSettings):
    """Settings of the Transformer."""

    variant: str = setting(..., "which network", affects=PROBLEM)
    data: Literal["grammar", "corpus"] = setting(..., "where the data comes from", affects=PROBLEM)
    on_error: Literal["stop", "skip"] = setting(..., "what to do with a damaged file or line")
    depth: int = setting(..., "layers of the encoder, and of the decoder", at_least=1, affects=PROBLEM)
    width: int = setting(..., "width of the residual stream", at_least=1, affects=PROBLEM)
    heads: int = setting(..., "heads of an attention", at_least=1, affects=PROBLEM)
    feed_forward: int = setting(..., "width of the hidden layer", at_least=1, affects=PROBLEM)
    tying: Literal["none", "decoder", "all"] = setting(
        ..., "shared among source embedding, target embedding and output", affects=PROBLEM
    )
    norm: Literal["post", "pre"] = setting(
        ..., "LayerNorm after each residual sum, or before each sub-layer", affects=PROBLEM
    )
    dropout: float = setting(
        ...,
        "share of dropped elements of embeddings, attention probabilities, inner layers and sub-layers' outputs",
        at_least=0,
        below=1,
    )
    smoothing: float = setting(
        ..., "label smoothing: share of a target that all words have alike", at_least=0, at_most=1
    )
    ambiguity: float = setting(
        ...,
        "grammar: probability of a synonym that the source does not determine",
        at_least=0,
        at_most=0.5,
        affects=PROBLEM,
    )
    beam: int = setting(..., "hypotheses of the search; 1: greedy", at_least=1, affects=PROBLEM)
    alpha: float = setting(..., "length penalty", at_least=0, affects=PROBLEM)
    extra: int = setting(..., "words by which a translation may exceed the longest source", at_least=0, affects=PROBLEM)
    source: Source = setting(..., "options of the data", affects=PROBLEM)
