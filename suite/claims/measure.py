"""Reads the number of a check from results.

A missed target leaves the number unknown: it lies beyond what the run spent. `Bounds` states what is known. To hold, a
statement must hold with the values that speak most against it; to fail, it must fail with those most in its favour.
"""

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from suite.claims.claim import Check, Measure, Region
from suite.load import is_node
from suite.record.facts import Part
from suite.record.record import is_crowded
from suite.record.result import Crossing, Point, Result

Unit = Literal["step", "train_seconds"]
TARGET = re.compile(r"(?P<metric>\w+)\s*(?P<sign>>=|<=)\s*(?P<value>[0-9.eE+-]+)")
TIMES = ("train_seconds", "wall_seconds", "step_seconds")  # fields that another program on the machine changes


@dataclass(frozen=True)
class Bounds:
    """Least and largest value that a number can have; equal if it is known.

    `resolution` is the spacing of values that are rounded, as a step of crossing is to one evaluation. A ratio's is
    that of its logarithm.
    """

    low: float
    high: float
    resolution: float = 0.0

    @property
    def known(self) -> bool:
        """Return whether the number is known exactly."""
        return self.low == self.high

    def against(self, region: Region) -> float:
        """Return the possible value that speaks most against lying in a region."""
        if region.above is None:
            return self.high
        return self.low if region.below is None or not region.contains(self.low) else self.high

    def in_favour(self, region: Region) -> float:
        """Return the possible value that speaks most for lying in a region."""
        low = -math.inf if region.above is None else region.above
        high = math.inf if region.below is None else region.below
        if self.high <= low:
            return self.high
        return self.low if self.low >= high else min(max(self.low, math.nextafter(low, high)), self.high)


def compute_quantity(check: Check, results: Mapping[str, Result]) -> Bounds:
    """Compute the quantity of a check for one seed.

    Args:
        check: with `runs`.
        results: of one seed, by the names in `check.runs`.
    """
    assert check.measure is not None
    first, *others = (read_number(check.measure, results[name]) for name in check.runs)
    if check.compare == "value":
        return first
    second = others[0]
    if check.compare == "difference":
        return Bounds(first.low - second.high, first.high - second.low, first.resolution + second.resolution)
    relative = sum(bounds.resolution / bounds.low for bounds in (first, second) if bounds.resolution)
    return Bounds(_quotient(first.low, second.high), _quotient(first.high, second.low), relative)


def _quotient(numerator: float, denominator: float) -> float:
    if math.isinf(denominator):
        return math.nan if math.isinf(numerator) else 0.0
    return numerator / denominator if denominator else math.inf


def read_number(measure: Measure, result: Result) -> Bounds:
    """Read the number that a measure names; NaN if the result lacks it, or it is seconds of a run on a busy machine."""
    if measure.outcome is not None:
        number = float(result.outcome.kind == measure.outcome)
        return Bounds(number, number)
    if is_crowded(result) and (measure.seconds_to or (measure.field or "").startswith(TIMES)):
        return _exactly(None)
    if measure.field is not None:
        return _exactly(_field(result, measure.field))
    if measure.metric is not None:
        return _exactly(_metric(result, measure.metric, measure))
    unit = "step" if measure.steps_to else "train_seconds"
    return _reached(result, measure.steps_to or measure.seconds_to or "last", unit)


def _exactly(number: float | None) -> Bounds:
    value = math.nan if number is None else float(number)
    return Bounds(value, value)


def _field(result: Result, path: str) -> float | None:
    first, *others = path.split(".")
    value: object = getattr(result, first, None)
    value = value.plain() if isinstance(value, Part) else value
    for name in others:
        value = value.get(name) if is_node(value) else None
    return value if isinstance(value, int | float) else None


def _metric(result: Result, name: str, measure: Measure) -> float | None:
    """A metric of the run; None if it is undefined there, or the run ended before the evaluation."""
    points = [point for point in result.curve if measure.step in (None, point.step)]
    values = [point.metrics.get(name) for point in points]
    if measure.best is None:
        diverged = measure.step is None and result.outcome.kind in ("diverged", "failed")
        return values[-1] if values and not diverged else None
    defined = [value for value in values if value is not None]
    return {"max": max, "min": min}[measure.best](defined) if defined else None


def _reached(result: Result, target: str, unit: Unit) -> Bounds:
    """Steps or training seconds to a target. A run that missed it gives the spent amount as the lower bound."""
    entry = result.targets[-1] if target == "last" and result.targets else _rung(result, target)
    crossed = entry if entry and entry.reached else _crossing(result, target)
    spent: float | None = getattr(crossed, unit) if crossed else None
    if spent is not None:
        return Bounds(float(spent), float(spent), _spacing(result, spent, unit))
    if result.outcome.kind in ("diverged", "failed"):
        return Bounds(math.inf, math.inf)
    return Bounds(float(max((getattr(point, unit) or 0 for point in result.curve), default=0)), math.inf)


def _spacing(result: Result, spent: float, unit: Unit) -> float:
    """Return the steps or seconds between the evaluation that met the target and the one before it."""
    before = [at for point in result.curve if (at := getattr(point, unit)) is not None and at < spent]
    return float(spent - max(before, default=0.0))


def _rung(result: Result, target: str) -> Crossing | None:
    """Return the entry of the result's ladder that equals a target."""
    match = TARGET.fullmatch(target)
    for entry in result.targets:
        sign = ">=" if entry.higher_is_better else "<="
        if match and (entry.metric, sign, entry.value) == (match["metric"], match["sign"], float(match["value"])):
            return entry
    return None


def _crossing(result: Result, target: str) -> Point | None:
    """Return the first evaluation that meets a target which is not in the result's ladder."""
    match = TARGET.fullmatch(target)
    if match is None:
        return None
    meets = {">=": operator.ge, "<=": operator.le}[match["sign"]]
    for point in result.curve:
        value = point.metrics.get(match["metric"])
        if value is not None and meets(value, float(match["value"])):
            return point
    return None
