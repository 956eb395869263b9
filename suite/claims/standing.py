"""Standing of a claim so far. `suite reproduce`, the leaderboard, reports and closing lines show it."""

from dataclasses import dataclass
from typing import Literal

from suite.claims.claim import Check, Claim

State = Literal["holds", "fails", "undecided", "not run", "out of reach"]
Verdict = Literal["reproduced", "contradicted", "undecided", "out of reach here", "not run"]
Pattern = Literal["pattern seen", "pattern not seen", "undecided", "not run"]


@dataclass(frozen=True)
class Measured:
    """One check of a claim, with what has been measured."""

    check: Check
    state: State
    values: dict[int, float]  # the quantity, by seed
    estimate: float | None = None  # its mean or median
    low: float | None = None  # confidence interval, which stays valid however often seeds are added
    high: float | None = None
    seeds_needed: int | None = None  # if undecided: about how many seeds more would decide, were the trend to last
    reason: str = ""  # one sentence: why this state
    files: tuple[str, ...] = ()  # the results that were used


@dataclass(frozen=True)
class Standing:
    """Verdict on a claim at its published size, and the pattern of its stand-ins."""

    claim: Claim
    paper: str  # name of the file of claims
    citation: str
    verdict: Verdict | None  # None: no check at the published size
    pattern: Pattern | None  # None: no stand-in
    checks: tuple[Measured, ...]
    minutes: float | None = None  # on two cores, for what is missing; None: unknown
