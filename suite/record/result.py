"""The outcome of one run: the contents of `result.json`, as a frozen value.

The classes here and in `facts.py` state what each entry means and which values it may have. `python -m
suite.record.schema` writes `suite/schema/result.json` from them. Seconds are real time, bytes are of one rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, model_validator

from suite.record.facts import (
    CLOSED,
    Absent,
    Count,
    DataUsed,
    Digest,
    Environment,
    Number,
    OpenPart,
    Part,
    Positive,
    Range,
    Seconds,
    Sha256,
    Spec,
    Text,
    Tuning,
)


class Flops(Part):
    """Floating-point operations."""

    sample: Annotated[float, Range(gt=0)]
    trained: Seconds = Field(description="on all samples of the run")


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation of the validation split; a baseline's has neither steps nor samples."""

    __pydantic_config__ = CLOSED

    step: Positive | None
    samples: Positive | None
    train_seconds: Seconds
    wall_seconds: Seconds
    metrics: dict[str, Annotated[Number | None, Field(description="null: undefined on this split")]]


class Crossing(Part):
    """A target, and the first evaluation that meets it; null where none does."""

    metric: Text
    value: Number
    higher_is_better: bool
    label: str
    reached: bool
    step: Count | None
    samples: Count | None
    train_seconds: Seconds | None
    wall_seconds: Seconds | None
    bracket: tuple[int | None, int | None] = Field(
        description="steps of the last evaluation that missed, and of the first that hit"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reached and self.train_seconds is None:
            raise ValueError("a reached target needs train_seconds")
        return self


class Outcome(OpenPart):
    """How the run ended."""

    kind: Annotated[
        Literal["reached", "exhausted", "diverged", "failed", "interrupted"],
        WithJsonSchema({"enum": ["reached", "exhausted", "diverged", "failed"], "type": "string"}),
    ]
    step: Absent[Count] = Field(None, description="after which it ended; absent for a baseline")
    loss: Absent[str] = Field(None, description="that was not finite; absent where only outputs were not")
    error: Absent[str] = Field(None, description="that ended a failed run")


class Quantiles(Part):
    """Median and 99th percentile of the steps' seconds; null where there was no step."""

    p50: Seconds | None
    p99: Seconds | None


class ProcessorSeconds(Part):
    """Processor seconds of rank 0's process."""

    training: Seconds = Field(description="while the training clock ran")
    excluded: Seconds = Field(description="while it stood")


class Kernel(Part):
    """What the kernel of rank 0's host sent to other hosts, headers included; only on the test bed."""

    sent: Count = Field(description="from the first step's preparation to the last step's end")
    ranks: Positive = Field(description="of the host")
    ratio: Seconds | None = Field(
        None, description="to the ledger's bytes, where the host has one rank; absent in segments"
    )


class SentBytes(OpenPart):
    """Bytes that rank 0 sent."""

    sent: Count
    by_name: dict[str, Count]
    by_level: Absent[dict[str, Count]] = Field(
        None, description="`flat`: among all ranks; `inner`: inside a host; `outer`: between hosts"
    )
    kernel: Absent[Kernel] = None


class Segment(OpenPart):
    """One start or resumption of the run; bytes and memory only where there are several."""

    step: Count
    resumed: bool
    device: str
    bytes: Absent[SentBytes] = None
    peak_memory_bytes: Count | None = None


class Decision(OpenPart):
    """How a policy of comm let gradients travel: after `step` updates in `mode` for `steps`, null to the end."""

    step: Count
    mode: str | dict[str, Any]
    steps: Positive | None
    why: Any
    seconds: Seconds = Field(description="that trying took")
    train_seconds: Absent[Seconds] = None
    replayed: bool


class Weights(Part):
    """The file of weights beside the result (save=final or best)."""

    step: Count
    file: str
    sha256: Sha256


class Resumption(Part):
    """Continuation of a run although something had changed (`resume=anyway`)."""

    step: Count
    changed: tuple[str, ...] = Field(description="parts of the fingerprint, in words")


def _check_unique(ids: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(ids)) < len(ids):
        raise ValueError("an id occurs more than once")
    return ids


class Result(Part):
    """The outcome of one run.

    `<run_dir>/result.json`, written once by suite/record/record.py. Everything but the header (what was known before
    the run) and the data is computed from spec.config and events.jsonl. Seconds are real time, bytes are of one rank.
    """

    version: Annotated[int, Field(ge=1, le=2)] = Field(alias="schema")
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")] = Field(
        description="of the configuration; names the run directory"
    )
    execution_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    fingerprint: Digest = Field(description="equal for runs whose numbers may stand for each other")
    task_version: Text
    environment: Environment
    command: str = Field(description="what was typed")
    resumed_anyway: Absent[tuple[Resumption, ...]] = Field(
        None, description="one for each time that the run was resumed although something changed (resume=anyway)"
    )
    data: DataUsed
    spec: Spec
    tuning: Tuning
    precision: Literal["float32", "float64", "tf32", "bfloat16"] | None
    deterministic: bool | None
    parameters: Positive | None = Field(description="that an optimizer changes")
    flops: Absent[Flops] = Field(
        None,
        description="floating-point operations, forward and backward, as the task's papers count them, further passes "
        "for new blocks not included; absent where it does not",
    )
    explored: Absent[Annotated[float, Range(gt=0, le=1)]] = Field(
        None, description="share of the places in sparse matrices where a block has ever stood; only where blocks move"
    )
    curve: tuple[Point, ...] = Field(description="every evaluation of the validation split, in order")
    targets: tuple[Crossing, ...] = Field(
        description="the ladder, easiest first; step and seconds are of the first evaluation that meets the target"
    )
    outcome: Outcome
    steps: Count
    samples: Count
    step_seconds: Quantiles
    train_seconds: Seconds | None = Field(description="from the first batch request to the last step's outputs")
    wall_seconds: Seconds | None = Field(description="all in")
    compile_seconds: Seconds
    compile_cache: Literal["hit", "miss"] | None
    excluded_seconds: dict[str, Seconds] = Field(
        description="wall time that is not training, by cause; `stopped`: between a stop of the process and its "
        "SIGCONT, `suspended`: of the system"
    )
    processor_seconds: Absent[ProcessorSeconds] = None
    busy_pauses: Absent[Count] = Field(
        None,
        description="pauses of the clock that began while threads still computed; training seconds are too low if not "
        "0",
    )
    gap_seconds: Absent[Seconds] = Field(
        None, description="in which rank 0's process did not run for an unknown reason; billed like all others"
    )
    input_seconds: Absent[Seconds] = Field(None, description="training seconds in which rank 0 waited for its batches")
    queued_seconds: Absent[Seconds] = Field(
        None,
        description="for which threads of rank 0's process were ready to run and waited for a core, summed over "
        "threads",
    )
    segments: tuple[Segment, ...] = Field(
        description="one for each time the run was started or resumed; where it was resumed, `bytes` and "
        "`peak_memory_bytes` are the segment's own, up to the checkpoint with which the next one went on"
    )
    peak_memory_bytes: Count | None = Field(description="the most of all segments")
    bytes: SentBytes = Field(description="that rank 0 sent in all segments")
    optimizer: Absent[dict[str, Number]] = Field(
        None,
        description="what the optimizer counted, where it does; `kept`: roots, inverses or bases that could not be "
        "refreshed, so that the previous one stayed",
    )
    predicted_step_seconds: Absent[Seconds] = Field(
        None, description="of a pipeline: forward and backward of one step, from the times of its stages"
    )
    channels_last: Absent[Literal[True]] = Field(
        None, description="images were stored with channels last, in torch on a GPU; absent elsewhere"
    )
    decisions: Absent[tuple[Decision, ...]] = None
    weights: Absent[Weights] = None
    log: Absent[Sha256] = Field(None, description="sha256 of the events in events.jsonl; absent in older results")
    published: Annotated[
        tuple[str, ...], AfterValidator(_check_unique), Field(json_schema_extra={"uniqueItems": True})
    ] = Field(description="ids of the published rows of the task")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.spec.baseline is None:
            self._check_trained()
        else:
            self._check_fitted()
        return self

    def _check_trained(self) -> None:
        """Check what a run has that an optimizer made, step by step."""
        if any(point.step is None or point.samples is None for point in self.curve):
            raise ValueError("curve: every evaluation needs a step and samples")
        if any(target.reached and target.step is None for target in self.targets):
            raise ValueError("targets: a reached target needs a step")
        if None in (self.precision, self.deterministic, self.parameters):
            raise ValueError("needs precision, deterministic and parameters")

    def _check_fitted(self) -> None:
        """Check what a baseline lacks: it is fitted whole, without an optimizer, steps or batches."""
        if len(self.curve) > 1 or any((point.step, point.samples) != (None, None) for point in self.curve):
            raise ValueError("curve: a baseline has one evaluation at most, without step and samples")
        if any(value is not None for value in (self.precision, self.deterministic, self.parameters)):
            raise ValueError("a baseline has no precision, deterministic and parameters")
        if self.steps or self.samples:
            raise ValueError("a baseline has no steps and samples")


def list_violations(error: ValidationError) -> Iterator[str]:
    """One line for each violation of the format, and one for all entries that a part of the result lacks."""
    missing: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        *parents, name = one["loc"] or ("",)
        place = ".".join(map(str, one["loc"]))
        if one["type"] == "missing":
            missing.setdefault(".".join(map(str, parents)), []).append(str(name))
        elif one["type"] == "extra_forbidden":
            yield f"{place}: unknown entry"
        else:
            message = one["msg"].removeprefix("Value error, ")
            yield f"{place}: {message}" if place else message
    for place, names in missing.items():
        where = f"{place}." if place else ""
        yield f"{', '.join(where + name for name in names)} {'is' if len(names) == 1 else 'are'} missing"


class Header(Part):
    """Facts about an execution that are known before it starts: `<run_dir>/header.json`. A result repeats them."""

    hash: str
    execution_id: str
    fingerprint: str
    task_version: str
    environment: Environment
    command: str
    resumed_anyway: Absent[tuple[Resumption, ...]] = None
