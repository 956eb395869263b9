"""The fixed quasi-random list of hyper-parameters that `suite tune` tries, and the ranking of the trials.

The list is Halton's sequence (Halton 1960) in the ranges of `optimizer.search`, unscrambled and without its first
point, which is a corner. The points are the same everywhere, and a longer list begins with the points of a shorter one.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.contract import UserError

DIGITS = 2  # significant digits of a value, so that the recipe has exactly the values that ran
PREFIX = "optimizer."


Result = dict[str, Any]


def list_rungs(result: Result | None) -> list[dict[str, Any]]:
    """List the targets that a run reached; none if it failed."""
    return [target for target in result["targets"] if target["reached"]] if result else []


def count_steps(result: Result | None) -> int | None:
    """Updates to the last target that a run reached; None if it reached none."""
    return max((rung["step"] for rung in list_rungs(result)), default=None)


def name_last(result: Result | None) -> str | None:
    """Return the label of the last target that a run reached; None if it reached none."""
    return list_rungs(result)[-1]["label"] if list_rungs(result) else None


def measure_shortfall(result: Result | None) -> float:
    """Distance of a run's best evaluation from its first target; infinite if the run failed or gave no number."""
    if result is None:
        return math.inf
    target = result["targets"][0]
    sign = 1 if target["higher_is_better"] else -1
    values = [point["metrics"].get(target["metric"], math.nan) for point in result["curve"]]
    return min((sign * (target["value"] - value) for value in values if math.isfinite(value)), default=math.inf)


@dataclass(frozen=True)
class Trial:
    """One point of the list, and the results of its runs; a result is None if the run failed."""

    number: int
    values: dict[str, float]  # by dotted key
    result: Result | None
    again: tuple[Result | None, ...] = ()  # results with the next seeds

    @property
    def outcome(self) -> str:
        """How the run ended."""
        return self.result["outcome"]["kind"] if self.result else "failed"

    @property
    def place(self) -> tuple[Any, int]:
        """Sort key, best trial first: more targets, then fewer steps, of the worst seed; then the trial's number.

        Trials without a target are sorted by their distance from the first target.
        """
        return max(_score(result) for result in (self.result, *self.again)), self.number


def _score(result: Result | None) -> tuple[int, float, float]:
    reached = count_steps(result)
    return (-len(list_rungs(result)), reached, 0.0) if reached else (0, math.inf, measure_shortfall(result))


def propose_trials(optimizer: Mapping[str, Any], *, fixed: Collection[str], trials: int) -> list[dict[str, float]]:
    """Return the values of each trial, by dotted key.

    Args:
        optimizer: its composed configuration, `search: {name: [low, high, log | linear]}` included.
        fixed: dotted keys that are not searched.
        trials: number of trials.

    Raises:
        UserError: if the optimizer has no ranges, or a range is malformed.
    """
    from scipy.stats import qmc

    ranges = {name: limits for name, limits in optimizer.get("search", {}).items() if PREFIX + name not in fixed}
    if not ranges:
        example = "'+optimizer.search={lr: [0.003, 0.3, log]}'"
        raise UserError(
            f"optimizer={optimizer['name']}: no ranges to search; set {example}, or add search: to its YAML file"
        )
    for name, limits in ranges.items():
        _check(name, limits, optimizer)
    unit = qmc.Halton(len(ranges), scramble=False).random(trials + 1)[1:].tolist()
    points = [dict(zip(ranges, row, strict=True)) for row in unit]
    return [{PREFIX + name: _scaled(u, *ranges[name], like=optimizer[name]) for name, u in p.items()} for p in points]


def _check(name: str, limits: Any, optimizer: Mapping[str, Any]) -> None:
    if name not in optimizer:
        raise UserError(f"optimizer.search.{name}: {optimizer['name']} has no hyper-parameter {name}")
    match limits:
        case [float() | int() as low, float() | int() as high, "log"] if 0 < low < high:
            return
        case [float() | int() as low, float() | int() as high, "linear"] if low < high:
            return
    raise UserError(
        f"optimizer.search.{name}={limits}: not a range; write [low, high, log] or [low, high, linear], low < high"
    )


def _scaled(u: float, low: float, high: float, scale: str, *, like: float) -> float:
    """Map a point of the unit interval to the range; round it if the default value is a whole number."""
    value = low * (high / low) ** u if scale == "log" else low + (high - low) * u
    return round(value) if isinstance(like, int) else float(f"{value:.{DIGITS}g}")


def make_table(ranked: Sequence[Trial]) -> str:
    """Return the trials as a table of text, in the order given."""
    rows = [["trial", *(key.removeprefix(PREFIX) for key in ranked[0].values), "reached", "steps", "outcome", "again"]]
    for trial in ranked:
        values = [f"{value:g}" for value in trial.values.values()]
        again = ", ".join(
            f"{name_last(result) or 'none'} {count_steps(result) or ''}".strip() for result in trial.again
        )
        cells = name_last(trial.result) or "none", str(count_steps(trial.result) or ""), trial.outcome, again
        rows.append([str(trial.number), *values, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
