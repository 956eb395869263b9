"""Reads result files for the leaderboard, and says of each other file why it is left out.

Result files may come from anywhere. A file counts only if every field that the leaderboard uses has the right type and
range (`Accepted`). suite/schema/result.json is stricter: it describes the files of this version of the suite.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suite.contract import UserError
from suite.entries import strict
from suite.entries.condition import format_condition
from suite.record import record
from suite.record.record import SCHEMAS
from suite.record.result import Result

HEADER = "header.json"  # a run's metadata
CHECKPOINT = "checkpoint"  # a folder of a run
DEEPEST = 20  # of nested settings; the suite's own configurations have 6 levels
LARGEST = 2**53  # whole numbers up to here are exact in JSON readers

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)


class _Task(_Part):
    name: Text


class _Method(_Part):
    name: Text


class _Config(_Part):
    task: _Task
    optimizer: _Method | None = None
    baseline: _Method | None = None

    @model_validator(mode="after")
    def _check(self) -> "_Config":
        if (self.optimizer is None) == (self.baseline is None):
            raise ValueError("needs either optimizer or baseline")
        return self


class _Spec(_Part):
    task: Text
    variant: str
    scale: str
    optimizer: str | None
    comm: str | None
    backend: str | None
    world: Positive | None
    batch_size: Positive | None
    seed: Count
    baseline: str | None = None
    config: _Config

    @model_validator(mode="after")
    def _check(self) -> "_Spec":
        if (self.baseline is None) != (self.config.baseline is None):
            raise ValueError("baseline must also be in config")
        if self.baseline is None and None in (self.comm, self.backend, self.world, self.batch_size):
            raise ValueError("needs comm, backend, world and batch_size")
        return self


class _Data(_Part):
    kind: Literal["real", "generated"]
    name: str
    identity: str
    samples: dict[str, Count]
    note: str


class _Environment(_Part):
    cpu: str | None
    cpu_kind: str | None = None
    threads: int | None
    commit: str | None
    dirty: bool | None
    initial_weights: str | None = None


class _Segment(_Part):
    device: str


class _Tuning(_Part):
    source: str
    trials: Count


class _Point(_Part):
    step: Count | None
    train_seconds: Seconds
    metrics: dict[str, float | None]


class _Target(_Part):
    metric: Text
    value: float
    higher_is_better: bool
    reached: bool
    step: Count | None
    train_seconds: Seconds | None

    @model_validator(mode="after")
    def _check(self) -> "_Target":
        if self.reached and self.train_seconds is None:
            raise ValueError("a reached target needs train_seconds")
        return self


class _Outcome(_Part):
    kind: Literal["reached", "exhausted", "diverged", "failed", "interrupted"]


class _Bytes(_Part):
    sent: Count


class Accepted(_Part):
    """Fields of a result that the leaderboard uses; others may be present."""

    spec: _Spec
    task_version: str
    data: _Data
    parameters: Positive | None
    environment: _Environment
    segments: list[_Segment]
    tuning: _Tuning
    precision: str | None
    curve: list[_Point]
    targets: list[_Target]
    outcome: _Outcome
    published: list[str]
    command: str
    busy_pauses: Count | None = None
    steps: Count | None = None
    bytes: _Bytes | None = None
    peak_memory_bytes: Count | None = None
    channels_last: bool = False

    @model_validator(mode="after")
    def _check(self) -> "Accepted":
        if self.spec.baseline is None:
            if any(point.step is None for point in self.curve):
                raise ValueError("curve: every evaluation needs a step")
            if any(target.reached and target.step is None for target in self.targets):
                raise ValueError("targets: a reached target needs a step")
        return self


def read_results(files: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """Read the results among JSON files.

    Args:
        files: the files, in any order.

    Returns:
        The results, and for each other file a line that says why it is left out.
    """
    results, left_out = [], []
    for file in files:
        try:
            results.append(parse_result(strict.read_bytes(file).decode("utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            left_out.append(f"{file.as_posix()}: not a result: {give_reason(error)}")
    return results, left_out


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files below a folder, apart from those that lie beside a run's result."""
    for file in folder.rglob("*.json"):
        if file.name != HEADER and file.parent.name != CHECKPOINT:
            yield file


def find_results(folder: Path) -> Iterator[tuple[Path, Result]]:
    """Yield the results of the run directories in a folder such as `runs`; other and damaged files are left out."""
    for path in sorted(folder.glob("*/*/result.json")):
        results, _ = read_results([path])
        yield from ((path, result) for result in results)


def parse_result(text: str) -> Result:
    """Return the result that a file contains.

    Raises:
        ValueError: if the text is no result that the leaderboard can use.
        RecursionError: if the text is nested too deeply for a reader of JSON.
    """
    content = json.loads(text, parse_constant=_not_json)
    if not isinstance(content, dict):
        raise ValueError("the file does not contain an object")
    if "schema" not in content:
        raise ValueError("schema is missing")
    if content["schema"] not in SCHEMAS:
        raise ValueError(f"its schema is {str(content['schema'])[:40]}; this suite reads {SCHEMAS[-1]}")
    Accepted.model_validate(content)
    result = cast("Result", content)
    if _deeper(result["spec"]["config"], DEEPEST):
        raise ValueError(f"spec.config: settings are nested more than {DEEPEST} levels deep")
    try:
        record.load_run(result)
    except UserError as error:
        raise ValueError(f"spec.config: {error}") from error
    format_condition(result).encode()  # raises where a text has half of a surrogate pair, which no page can contain
    return result


def _deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested more than so many levels deep."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def give_reason(error: Exception) -> str:
    """Return why `parse_result` rejected a file, in a line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            return f"{place} is missing"
        message = first["msg"].removeprefix("Value error, ")
        return f"{place}: {message}" if place else message
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error)[:300]
