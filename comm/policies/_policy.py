"""How a policy asks and decides. It is a generator, the same in both backends, and holds no array.

`decide(candidates, kinds, situation, **options)` yields `Probe`, `Measure` or `Predict` as often as it likes, gets
each one's answer, and then yields a `Commit`; the answer to that is the `Situation` in which it is asked again.
Whatever was tried, the run goes on from where it was. Rank 0 decides and the others are told; what is tried is on the
clock and in the ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Mode = str | Mapping[str, str]  # a candidate's name, or one for each kind of parameter


@dataclass(frozen=True)
class Point:
    """A score of the validation split; larger is better, whatever the metric."""

    step: int
    score: float


@dataclass(frozen=True)
class Situation:
    """Where the run is.

    Attributes:
        step: updates made so far.
        total: updates of the whole run.
        points: all scores so far, the present one last.
        best: the largest score that there can be; inf where there is no largest.
    """

    step: int
    total: int
    points: Sequence[Point]
    best: float


@dataclass(frozen=True)
class Probe:
    """Train some steps in a mode from the present state, score some times on the way, and go back; -> `Probed`."""

    mode: Mode
    steps: int
    scores: int = 1


@dataclass(frozen=True)
class Probed:
    """What a probe found: seconds of one step (the slowest rank's), and the scores."""

    seconds: float
    points: Sequence[Point]


@dataclass(frozen=True)
class Measure:
    """Take the mean of all gradients of one kind over ranks, some times; -> median seconds, the slowest rank's."""

    mode: Mode
    kind: str
    repeats: int = 5


@dataclass(frozen=True)
class Predict:
    """Say what the cost model expects of one mean of all gradients of one kind, which is not taken; -> `Predicted`."""

    mode: Mode
    kind: str
    repeats: int = 5


@dataclass(frozen=True)
class Predicted:
    """What the cost model says of an exchange, and the codec of itself.

    Attributes:
        coding: seconds of encoding and decoding, from the codec's speed here: the median of `repeats`, on the slowest
            rank.
        transfer: seconds on the network.
        sent: bytes that rank 0 sends.
        bits: of a value on the wire.
        error: largest error that the codec declares for normally distributed values, root mean square, as a share of
            theirs.
        network: which network was assumed.
    """

    coding: float
    transfer: float
    sent: int
    bits: float
    error: float
    network: str


@dataclass(frozen=True)
class Commit:
    """Train in a mode; -> the `Situation` after `steps` updates.

    Attributes:
        mode: from now on.
        steps: until the policy is asked again; None for the rest of the run.
        why: numbers that the decision rests on, for the record.
    """

    mode: Mode
    steps: int | None = None
    why: Mapping[str, Any] = field(default_factory=dict)
