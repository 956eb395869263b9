"""Events of a run. Its log and its result are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Started:
    """Beginning of a run, or its continuation from `step` after a restore."""

    step: int
    resumed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # parameters, compile_seconds, compile_cache, device


@dataclass(frozen=True)
class Step:
    """One update has been made and its loss is on the host. `step` counts updates, from 1."""

    step: int
    samples: int
    loss: float
    hyper: Mapping[str, float]
    train_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Evaluated:
    """Scores of the validation split after `step` updates. For a baseline, `step` and `samples` are None."""

    step: int | None
    samples: int | None
    train_seconds: float
    wall_seconds: float
    metrics: Mapping[str, float | None]  # None: undefined on this split


@dataclass(frozen=True)
class Decided:
    """A policy has chosen a communication mode after `step` updates.

    Attributes:
        step: updates made.
        mode: a candidate's name, or one for each kind of layer.
        steps: the number of updates for which the mode is used; None: until the end.
        why: the measurements that the decision is based on.
        seconds: seconds of the training clock that the trials took.
        train_seconds: the training clock after the decision.
        replayed: whether the decision is from another run's record.
    """

    step: int
    mode: str | Mapping[str, str]
    steps: int | None
    why: Mapping[str, Any]
    seconds: float
    train_seconds: float
    replayed: bool = False

    def __str__(self) -> str:
        mode = self.mode if isinstance(self.mode, str) else ", ".join(f"{k} {v}" for k, v in self.mode.items())
        return f"comm {mode} from step {self.step:,}" + (f", for {self.steps:,}" if self.steps else "")


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint has been written after `step` updates, at `path`."""

    step: int
    path: str


@dataclass(frozen=True)
class Saved:
    """Weights after `step` updates, written to `file` in the run's directory."""

    step: int
    file: str
    sha256: str


@dataclass(frozen=True)
class Finished:
    """Last event. `outcome["kind"]` is reached, exhausted, diverged, interrupted or failed."""

    step: int
    outcome: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)  # clock, memory, bytes


Event = Started | Step | Evaluated | Decided | Checkpointed | Saved | Finished
