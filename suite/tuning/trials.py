"""One trial of `suite tune`: its values, its runs, and its score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from suite.record.result import Crossing, Result
from suite.tuning.points import PREFIX, Values

MISS = 2  # a run that misses a target counts as if it had taken this multiple of max_steps


def list_rungs(result: Result | None) -> list[Crossing]:
    """List the targets that a run reached; none if it failed."""
    return [target for target in result.targets if target.reached] if result else []


def count_steps(result: Result | None) -> int | None:
    """Updates to the last target that a run reached; None if it reached none."""
    return max((rung.step or 0 for rung in list_rungs(result)), default=None)


def name_last(result: Result | None) -> str | None:
    """Return the label of the last target that a run reached; None if it reached none."""
    return list_rungs(result)[-1].label if list_rungs(result) else None


def measure_shortfall(result: Result | None) -> float:
    """Distance of a run's best evaluation from the first target that it missed; infinite if it gave no number."""
    if result is None:
        return math.inf
    target = next((target for target in result.targets if not target.reached), None)
    if target is None:
        return 0.0
    sign = 1 if target.higher_is_better else -1
    values = [point.metrics.get(target.metric) for point in result.curve]
    defined = [value for value in values if value is not None and math.isfinite(value)]
    return min((sign * (target.value - value) for value in defined), default=math.inf)


@dataclass(frozen=True)
class Trial:
    """One point, and the results of its runs; a result is None if the run failed.

    Attributes:
        number: of the trial, from 1.
        values: by dotted key.
        screened: the result of a short run.
        results: of whole runs, one for each seed.
    """

    number: int
    values: Values
    screened: Result | None = None
    results: tuple[Result | None, ...] = ()

    @property
    def outcome(self) -> str:
        """How the last of its runs ended."""
        result = self.results[-1] if self.results else self.screened
        return result.outcome.kind if result else "failed"


def score_results(results: Sequence[Result | None], most_steps: int) -> tuple[float, ...]:
    """Return the score of runs with different seeds, the lower the better; compare scores of equally many runs.

    For each target, from the last: the number of seeds that reach it, then their mean steps, where a miss counts as
    `MISS` times `most_steps`. Last, the mean distance from the next target.

    Args:
        results: of the runs.
        most_steps: of a run.
    """
    ladder = next((result.targets for result in results if result), ())
    score: list[float] = []
    for rung in reversed(range(len(ladder))):
        crossed = [result.targets[rung].step if result else None for result in results]
        steps = [MISS * most_steps if step is None else step for step in crossed]
        score += [-sum(step is not None for step in crossed), fmean(steps)]
    return (*score, fmean(map(measure_shortfall, results))) if ladder else (math.inf,)


def score_short_run(result: Result | None) -> tuple[float, ...]:
    """Return the score of a short run, the lower the better.

    It has the targets that the run reached, then the distance from the next one, then the steps. Steps to an early
    target say little: on the autoencoder, a learning rate of 0.02 reaches the first one early, and the last one never.
    """
    return -len(list_rungs(result)), measure_shortfall(result), count_steps(result) or 0


def make_table(ranked: Sequence[Trial]) -> str:
    """Return the trials as a table of text, in the order given: for each run the last target and the steps to it."""
    rows = [["trial", *(key.removeprefix(PREFIX) for key in ranked[0].values), "short run", "whole runs", "outcome"]]
    for trial in ranked:
        values = [f"{value:g}" for value in trial.values.values()]
        whole = ", ".join(map(_describe, trial.results))
        rows.append([str(trial.number), *values, _describe_short(trial.screened), whole, trial.outcome])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _describe_short(result: Result | None) -> str:
    distance = measure_shortfall(result)
    return _describe(result) + (f", {distance:.3g} to go" if 0 < distance < math.inf else "")


def _describe(result: Result | None) -> str:
    return f"{name_last(result) or 'none'} {count_steps(result) or ''}".strip()
