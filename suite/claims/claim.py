"""Reads the claims: testable statements of papers, each with the runs or computations that decide it.

`results/claims/<paper>.yaml` contains the claims of one paper. The classes below define the format; docs/claims.md
explains it. A claim has checks at the published size, at the size of a stand-in, or both. All checks of one size must
hold for the claim to hold there.
"""

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from suite.claims import study
from suite.contract import UserError, suggest_names
from suite.entries import strict
from suite.entries.faults import first_fault, line_of, not_yaml
from suite.load import Plain, from_yaml
from suite.statistics.sequential import find_least_seeds
from suite.statistics.share import find_least_share_seeds

ALPHA = 0.05  # conventional; of a claim
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Region(_Strict):
    """Values of a check's quantity for which the statement holds; an absent bound does not apply."""

    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _check(self) -> "Region":
        if self.above is None and self.below is None:
            raise ValueError("state above, below or both")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"above {self.above:g} and below {self.below:g}: no value lies between")
        return self

    def __str__(self) -> str:
        if self.above is None:
            return f"below {self.below:g}"
        return f"above {self.above:g}" if self.below is None else f"{self.above:g} to {self.below:g}"

    @property
    def two_sided(self) -> bool:
        """Return whether it has both bounds."""
        return self.above is not None and self.below is not None

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper bound; infinite where there is none."""
        return -math.inf if self.above is None else self.above, math.inf if self.below is None else self.below

    def contains(self, value: float) -> bool:
        """Return whether a value lies in the region, its bounds excluded."""
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)


class Measure(_Strict):
    """How a number is read from a result; exactly one of the first five is given."""

    steps_to: Text | None = None  # a target, such as "top1>=97"; "last" is the last of the ladder
    seconds_to: Text | None = None  # training seconds to a target
    metric: Text | None = None  # a validation metric
    field: Text | None = None  # a dotted path into result.json, such as bytes.sent
    outcome: Literal["reached", "exhausted", "diverged", "failed"] | None = None  # 1 if the run ended so, else 0
    step: int | None = None  # of `metric`: the evaluation after this step; absent: the last one
    best: Literal["max", "min"] | None = None  # of `metric`: its best value instead of one evaluation

    @model_validator(mode="after")
    def _check(self) -> "Measure":
        given = [
            name for name in ("steps_to", "seconds_to", "metric", "field", "outcome") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError("state one of steps_to, seconds_to, metric, field, outcome")
        if self.metric is None and (self.step is not None or self.best is not None):
            raise ValueError("step and best belong to metric")
        return self


class Check(_Strict):
    """One quantity, measured once for each seed, and the region in which it must lie.

    A check has either `runs`, of this suite, or a `study`: a module of `suite/studies` with a function `measure`. If
    the suite has no command for the statement, it has neither, and `needs` says what is missing.
    """

    name: Name  # unique within the claim
    scale: Literal["published", "stand-in"]
    quantity: Text  # what is measured, with its unit
    holds: Region
    statistic: Literal["mean", "median", "share", "exact"] = "mean"  # over seeds; share: of ones; exact: without seeds
    excluding: Literal["diverged"] | None = None  # runs that ended so do not count
    compare: Literal["value", "ratio", "difference"] = "value"  # of the first run, or of the first and the second
    runs: dict[Name, Text] = {}  # name: overrides, as after `suite`
    measure: Measure | None = None
    study: Name | None = None
    arguments: dict[str, JsonValue] = {}  # keyword arguments of the study's `measure`
    seeds: Annotated[int, Field(ge=1)] = 3  # measured first
    most_seeds: Annotated[int, Field(ge=1)] = 5  # measured at most by one `suite reproduce`
    published: float | None = None  # the printed value of the quantity
    minutes: Annotated[float, Field(gt=0)] | None = None  # of one seed on two cores; absent: planned by `suite plan`
    needs: Text | None = None  # data or hardware that a laptop lacks
    cost: Text | None = None  # of what `needs` names, such as the printed time and devices
    stands_for: Text | None = None  # of a stand-in: how it differs from the paper

    @model_validator(mode="after")
    def _check(self) -> "Check":
        if (self.runs and self.study) or not (self.runs or self.study or self.needs):
            raise ValueError("state either runs or study; without either, state in needs what is missing")
        if self.runs and self.measure is None:
            raise ValueError("runs need a measure")
        if self.runs and len(self.runs) != (1 if self.compare == "value" else 2):
            raise ValueError(f"compare: {self.compare} needs {1 if self.compare == 'value' else 2} runs")
        if self.measure and self.measure.outcome and self.statistic not in ("share", "exact"):
            raise ValueError("an outcome is 1 or 0 in each seed; state statistic: share")
        if self.compare == "ratio" and self.holds.below is not None and self.holds.below <= 0:
            raise ValueError(f"holds: below {self.holds.below:g}: a ratio is positive")
        if (self.scale == "stand-in") != (self.stands_for is not None):
            raise ValueError("a stand-in, and only a stand-in, says in stands_for how it differs from the paper")
        return self

    @property
    def most(self) -> int:
        """Most seeds that one `suite reproduce` measures."""
        return 1 if self.statistic == "exact" else max(self.seeds, self.most_seeds)

    def find_least_seeds(self, alpha: float) -> int | None:
        """Return the fewest seeds that can show that the check holds; None if none can.

        Args:
            alpha: its error rate.
        """
        if self.statistic == "exact":
            return 1
        if self.statistic == "share":
            return find_least_share_seeds(*self.holds.ends, alpha)
        may_miss = self.measure is not None and (self.measure.steps_to or self.measure.seconds_to)
        return find_least_seeds("median" if may_miss else self.statistic, alpha)


class Claim(_Strict):
    """A testable statement of a paper."""

    id: Name
    statement: Text
    place: Text  # in the paper
    checks: Annotated[tuple[Check, ...], Field(min_length=1)]
    rows: tuple[str, ...] = ()  # ids of published rows
    note: Text | None = None  # limitations and known traps

    @model_validator(mode="after")
    def _check(self) -> "Claim":
        names = [check.name for check in self.checks]
        if len(set(names)) < len(names):
            raise ValueError("two checks have the same name")
        for check in self.checks:
            if not (check.runs or check.study):
                continue
            least = check.find_least_seeds(self.divide_error(check))
            if least is None or least > check.most:
                enough = f"set most_seeds: {least}" if least else "choose another region"
                raise ValueError(f"{check.name}: {check.most} seeds could never show that it holds; {enough}")
        return self

    def divide_error(self, check: Check) -> float:
        """Return the error rate of one check: the claim's, divided by its number of checks of the same size."""
        return ALPHA / sum(other.scale == check.scale for other in self.checks)


class Paper(_Strict):
    """Claims of one paper."""

    citation: Text
    arxiv: Annotated[str, Field(pattern=r"^\d{4}\.\d{4,5}$")] | None = None
    where: Text | None = None  # the document that was read, if not the one on arXiv
    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> "Paper":
        ids = [claim.id for claim in self.claims]
        for number, id in enumerate(ids, start=1):
            if (first := ids.index(id) + 1) != number:
                raise ValueError(f"claim {number} has the id {id}, as claim {first}; choose another one")
        return self


@cache
def load_claims() -> dict[str, Paper]:
    """Every paper with claims, by the name of its file.

    Raises:
        UserError: if a file does not follow the format, or two have a claim of the same id.
    """
    folder = resources.files("suite.results") / "claims"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    papers = {
        name.removesuffix(".yaml"): _paper(from_yaml(text), text, f"results/claims/{name}")
        for name, text in texts.items()
    }
    first: dict[str, str] = {}
    for paper, id in ((paper, claim.id) for paper, content in papers.items() for claim in content.claims):
        if (other := first.setdefault(id, paper)) != paper:
            raise UserError(f"results/claims/{paper}.yaml: {id}: {other}.yaml has a claim with this id, too")
    return papers


def parse_claims(text: str, name: str) -> Paper:
    """Return the claims of a user's file. It is read by the parser in Python, which bounds the depth of nesting.

    Args:
        text: content of the file.
        name: its name, for messages.

    Raises:
        UserError: if the text does not follow the format.
    """
    import yaml

    try:
        content = from_yaml(text, bounded=True)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{name}: {not_yaml(error)}") from error
    return _paper(content, text, name)


def _paper(content: Plain, text: str, name: str) -> Paper:
    """Return the claims of a file's content; its text and name are for messages."""
    try:
        return Paper.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{name}: {first_fault(error, Paper, text)}") from error


def select_claims(names: Sequence[str] = ()) -> list[tuple[str, Paper, Claim]]:
    """Claims with their papers, and the names of the papers' files.

    Args:
        names: ids of claims, names of papers, or paths of your own files (`mine.yaml`); all of the suite's claims if
            there are none.

    Raises:
        UserError: if a name is none of these; names the nearest.
    """
    papers = dict(load_claims())
    wanted: set[str] = set()
    ids = {claim.id for paper in papers.values() for claim in paper.claims}
    for name in names:
        if name.endswith((".yaml", ".yml")):
            stem = Path(name).stem
            own = _read(Path(name))
            if known := ids & {claim.id for claim in own.claims}:
                raise UserError(f"{name}: {min(known)}: the suite has a claim with this id; choose another one")
            papers = {**papers, stem: own}
            wanted.add(stem)
        elif name in ids or name in papers:
            wanted.add(name)
        else:
            raise UserError(f"{name}: no such claim or paper; {suggest_names(name, ids | set(papers))}")
    return [
        (stem, paper, claim)
        for stem, paper in papers.items()
        for claim in paper.claims
        if not wanted or claim.id in wanted or stem in wanted
    ]


def _read(path: Path) -> Paper:
    """Return the claims of a user's file; its studies are checked too."""
    try:
        text = strict.read_bytes(path).decode("utf-8")
    except strict.Unreadable as error:
        raise UserError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start}: is not UTF-8") from error
    paper = parse_claims(text, path.as_posix())
    for index, claim in enumerate(paper.claims):
        for number, check in enumerate(claim.checks):
            if check.study and (fault := study.find_fault(check.study, check.arguments)):
                field, cause = fault
                place = ("claims", index, "checks", number, field)
                raise UserError(f"{path.as_posix()}: line {line_of(text, place)}: {field}: {cause}")
    return paper
