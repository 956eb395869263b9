"""Types of `result.json`. `suite/schema/result.json` says what each entry means, and which values it may have."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, TypeGuard


class Point(TypedDict):
    """One evaluation of the validation split; a baseline's has neither steps nor samples."""

    step: int | None
    samples: int | None
    train_seconds: float
    wall_seconds: float
    metrics: Mapping[str, float | None]  # None: undefined on this split


class Crossing(TypedDict):
    """A target, and the first evaluation that meets it; None where none does."""

    metric: str
    value: float
    higher_is_better: bool
    label: str
    reached: bool
    step: int | None
    samples: int | None
    train_seconds: float | None
    wall_seconds: float | None
    bracket: Sequence[int | None]


class Spec(TypedDict):
    """Run that the result is of; `config` is its whole configuration. In a baseline's, five entries are None."""

    task: str
    variant: str
    scale: str
    recipe: str
    baseline: NotRequired[str]
    optimizer: str | None
    comm: str | None
    backend: str | None
    world: int | None
    batch_size: int | None
    seed: int
    config: Mapping[str, Any]  # `load_run` reads it


class Tuning(TypedDict):
    """Where the settings come from."""

    source: str
    trials: int
    converged: NotRequired[bool | None]


class Kernel(TypedDict):
    """Bytes that the kernel of rank 0's host sent to other hosts; only on the test bed."""

    sent: int
    ranks: int
    ratio: float | None


class SentBytes(TypedDict):
    """Bytes that rank 0 sent."""

    sent: int
    by_name: Mapping[str, int]
    by_level: NotRequired[Mapping[str, int]]
    kernel: NotRequired[Kernel]


class Segment(TypedDict):
    """One start or resumption of the run; bytes and memory only where there are several."""

    step: int
    resumed: bool
    device: str
    peak_memory_bytes: NotRequired[int | None]
    bytes: NotRequired[SentBytes]


class Weights(TypedDict):
    """File of weights beside the result."""

    step: int
    file: str
    sha256: str


class Continuation(TypedDict):
    """Continuation of a run although something had changed (`resume=anyway`)."""

    step: int
    changed: Sequence[str]


class Header(TypedDict):
    """Facts about an execution that are known before it starts."""

    hash: str
    execution_id: str
    fingerprint: str
    task_version: str
    environment: dict[str, Any]  # `suite.record.environment` writes and compares it
    command: str
    resumed_anyway: NotRequired[list[Continuation]]


class Result(Header):
    """Outcome of one run."""

    schema: int
    data: Mapping[str, Any]  # `read_data` reads it
    spec: Spec
    tuning: Tuning
    precision: str | None
    channels_last: NotRequired[bool]
    deterministic: bool | None
    parameters: int | None
    flops: NotRequired[Mapping[str, float]]
    explored: NotRequired[float]
    curve: Sequence[Point]
    targets: Sequence[Crossing]
    outcome: Mapping[str, Any]  # `kind`, and what belongs to the kind
    steps: int
    samples: int
    step_seconds: Mapping[str, float | None]
    predicted_step_seconds: NotRequired[float]
    train_seconds: float | None
    wall_seconds: float | None
    compile_seconds: float
    compile_cache: str | None
    excluded_seconds: Mapping[str, float]
    processor_seconds: NotRequired[Mapping[str, float]]
    busy_pauses: NotRequired[int]
    gap_seconds: NotRequired[float]
    input_seconds: NotRequired[float]
    weights: NotRequired[Weights]
    segments: Sequence[Segment]
    peak_memory_bytes: int | None
    bytes: SentBytes
    decisions: NotRequired[Sequence[Mapping[str, Any]]]
    optimizer: NotRequired[Mapping[str, float]]
    log: NotRequired[str]
    published: Sequence[str]


def is_result(content: object) -> TypeGuard[Result]:
    """Return whether the content of a JSON file is a result; its entries are not checked."""
    return isinstance(content, dict) and all(key in content for key in ("schema", "execution_id", "spec"))
