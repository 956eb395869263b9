"""Parts of a result that describe its run (environment, data, settings), and the types of a result's entries.

An entry with `Absent` may be missing, as in results of older versions; it is None then.
"""

import json
from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from operator import or_
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.functional_validators import WrapValidator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

LARGEST = 2**53  # whole numbers up to here are exact in JSON readers
STEPPED = ("optimizer", "backend", "comm", "launch", "world", "max_steps", "eval_every")  # settings of a trained run
UNFITTED = ("optimizer", "backend", "comm", "world", "max_steps")  # settings that a baseline does not have

Value = TypeVar("Value")


class _NotNull:
    """Refuses null for an entry that may be missing."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(reduce(or_, (kind for kind in get_args(source) if kind is not NoneType)))


Absent = Annotated[Value | None, _NotNull()]
Text = Annotated[str, Field(min_length=1)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]


class Range:
    """Accepts the numbers of a range; a whole number stays one, so that a result is written as it was read."""

    def __init__(self, *, ge: int | None = None, gt: int | None = None, le: int | None = None):
        self.ge, self.gt, self.le = ge, gt, le  # as pydantic names them

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        makers = core_schema.float_schema, core_schema.int_schema
        kinds: list[CoreSchema | tuple[CoreSchema, str]] = [make(ge=self.ge, gt=self.gt, le=self.le) for make in makers]
        limits = {"at least": self.ge, "above": self.gt, "at most": self.le}
        wanted = ", ".join(["a number", *(f"{word} {limit}" for word, limit in limits.items() if limit is not None)])
        return core_schema.union_schema(kinds, custom_error_type="number", custom_error_message=f"must be {wanted}")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        limits = {"minimum": self.ge, "exclusiveMinimum": self.gt, "maximum": self.le}
        return {"type": "number"} | {name: limit for name, limit in limits.items() if limit is not None}


Number = Annotated[float, Range()]
Seconds = Annotated[float, Range(ge=0)]


CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Part(BaseModel):
    """A part of a result; it has no entries but the declared ones."""

    model_config = CLOSED

    def plain(self) -> dict[str, Any]:
        """Return the entries as the file has them; those that are missing there are missing here."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Return the part of which `plain` returned the entries.

        Raises:
            pydantic.ValidationError: the entries do not follow the types.
        """
        return cls.model_validate_json(json.dumps(plain))


class OpenPart(Part):
    """A part of a result that may have further entries."""

    model_config = ConfigDict(extra="allow")


class Environment(OpenPart):
    """Machine, versions and source, as `suite.record.environment` reads them."""

    suite: str
    python: str
    system: str
    cpu: str
    cpu_kind: Absent[str] = Field(None, description="family, model and vector instructions; absent in older results")
    cores: Positive
    gpus: Absent[tuple[Any, ...]] = Field(None, description="absent in older results")
    gpu_software: Absent[dict[str, str]] = Field(
        None,
        description="versions of the driver and of the packages with CUDA, cuDNN and NCCL; absent in older results",
    )
    memory_bytes: Positive
    frameworks: dict[str, str]
    packages: Digest
    source: Digest
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")] | None
    dirty: bool | None = Field(description="whether the commit had uncommitted changes")
    environment_variables: Absent[dict[str, str]] = None
    data: Absent[str] = Field(None, description="checksum of the data; absent in older results")
    members: Absent[dict[str, str]] = Field(None, description="checksums of packages and folders outside the suite")
    origins: Absent[dict[str, dict[str, str | bool]]] = Field(
        None,
        description="of packages and folders outside the suite: version, commit, dirty, source, author; absent in "
        "older results",
    )
    initial_weights: str | None = Field(None, description="checksum of the weights of init_from")
    decisions: Absent[str] = Field(None, description="checksum of the file of decisions")
    threads: Positive


class DataUsed(Part):
    """The data that the run used."""

    kind: Literal["real", "generated"]
    name: str
    identity: str = Field(description="sha256 of real data, or the version of the generator")
    samples: dict[str, Count]
    note: str
    unit: Absent[str] = Field(None, description="what a sample is, in the plural")
    skipped: tuple[str, ...]
    dropped: Absent[dict[str, Count]] = Field(
        None, description="samples, or what dropped_unit names, that were left out, by reason; absent where nothing was"
    )
    dropped_unit: Absent[str] = Field(None, description="what dropped counts, in the plural; samples where absent")
    dropped_of: Absent[Count] = Field(None, description="how many of these there were; absent where they are samples")
    label: str


class _Read(Part):
    """A part of a configuration, which is not kept."""

    model_config = ConfigDict(extra="ignore")


class _Source(_Read):
    source: str
    trials: Count


class _Named(_Read):
    name: Text


class _Member(_Named):
    module: str


class _Settings(_Read):
    """What every configuration must have; `load_run` checks all of it."""

    task: _Member
    seed: Count
    scale: str
    tuning: _Source
    optimizer: Absent[_Member] = None
    baseline: Absent[_Member] = None
    backend: Absent[Literal["torch", "jax"]] = None
    comm: Absent[_Named] = None
    launch: Absent[dict[str, Any]] = None
    world: Absent[Positive] = None
    max_steps: Absent[Positive] = None
    eval_every: Absent[Positive] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.model_fields_set
        if ("optimizer" in given) == ("baseline" in given):
            raise ValueError("needs either optimizer or baseline")
        if "optimizer" in given and (lacking := [name for name in STEPPED if name not in given]):
            raise ValueError(f"lacks {', '.join(lacking)}")
        if "baseline" in given and (wrong := [name for name in UNFITTED if name in given]):
            raise ValueError(f"a baseline has no {', '.join(wrong)}")
        return self


def _check_settings(config: Any, read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Check a configuration, and return it as it is: `load_run` reads it."""
    _Settings.model_validate(config)
    return read(config)


class Spec(Part):
    """The run that the result is of."""

    task: Text
    variant: str
    scale: str
    recipe: str
    baseline: Absent[str] = Field(
        None, description="a model that was fitted whole; absent where an optimizer made steps"
    )
    optimizer: str | None = Field(description="this, and the next four, are null for a baseline only")
    comm: str | None
    backend: Literal["torch", "jax"] | None
    world: Positive | None
    batch_size: Positive | None
    seed: Count
    config: Annotated[dict[str, Any], WrapValidator(_check_settings, json_schema_input_type=_Settings)]

    @cached_property
    def settings(self) -> str:
        """The whole configuration as JSON."""
        return json.dumps(self.config)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.baseline is None) != ("baseline" not in self.config):
            raise ValueError("baseline must also be in config")
        values = self.optimizer, self.comm, self.backend, self.world, self.batch_size
        if self.baseline is None and None in values:
            raise ValueError("needs optimizer, comm, backend, world and batch_size")
        if self.baseline is not None and any(value is not None for value in values):
            raise ValueError("a baseline has no optimizer, comm, backend, world and batch_size")
        return self


class Tuning(OpenPart):
    """Where the settings come from."""

    source: str
    trials: Count
    converged: bool | None = None
