"""Hyper-parameters that `suite tune` tries: the optimizer's own values first, then a quasi-random list.

The list is Halton's sequence (Halton 1960) in the ranges of `optimizer.search`, unscrambled and without its first
point, which is a corner. The points are the same everywhere, and a longer list begins with the points of a shorter one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from annotated_types import Ge, Le, Lt

from suite.contract import UserError
from suite.nodes import load_settings

DIGITS = {"log": 2, "linear": 4}  # significant digits of a value, so that the recipe has exactly the values that ran
PREFIX = "optimizer."
STRIDE = 0.25  # of a range: how far a value beyond all tried ones lies from them
Values = dict[str, float]  # by dotted key


@dataclass(frozen=True)
class Range:
    """Where a hyper-parameter is searched.

    Attributes:
        low, high: the ends.
        scale: log or linear.
        whole: whether it takes whole numbers.
        least, most: its bounds; None where it has none.
        below: the least value that is too large; None where there is none.
    """

    low: float
    high: float
    scale: str
    whole: bool = False
    least: float | None = None
    most: float | None = None
    below: float | None = None

    def scaled(self, share: float) -> float:
        """Return the value at a share of the range, rounded."""
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        return self._round(value)

    def step_out(self, value: float, outward: int) -> float | None:
        """Return a value further out, 1 up or -1 down; None where a bound of the hyper-parameter ends the way."""
        if self.scale == "log" and value <= 0:
            return None
        if self.scale == "log":
            further = value * (self.high / self.low) ** (STRIDE * outward)
        else:
            further = value + (self.high - self.low) * STRIDE * outward
        if self.least is not None:
            further = max(self.least, further)
        if self.most is not None:
            further = min(self.most, further)
        further = self._round(further)
        if self.whole and further == value:
            further += outward
        inside = (self.least is None or further >= self.least) and (self.most is None or further <= self.most)
        inside = inside and (self.below is None or further < self.below)
        return further if inside and (further - value) * outward > 0 else None

    def _round(self, value: float) -> float:
        return round(value) if self.whole else float(f"{value:.{DIGITS[self.scale]}g}")


def find_ranges(optimizer: Mapping[str, Any], *, fixed: Collection[str]) -> dict[str, Range]:
    """Return the range of each hyper-parameter that is searched, by dotted key.

    Args:
        optimizer: its composed configuration, `search: {name: [low, high, log | linear]}` included.
        fixed: dotted keys that are not searched.

    Raises:
        UserError: if the optimizer has no ranges, or a range is malformed.
    """
    search = {name: limits for name, limits in optimizer.get("search", {}).items() if PREFIX + name not in fixed}
    if not search and optimizer.get("search"):
        raise UserError(f"{', '.join(PREFIX + name for name in optimizer['search'])}: set, so that nothing is searched")
    if not search:
        example = "'+optimizer.search={lr: [0.003, 0.3, log]}'"
        raise UserError(
            f"optimizer={optimizer['name']}: no ranges to search; set {example}, or add search: to its YAML file"
        )
    return {PREFIX + name: _read_range(name, limits, optimizer) for name, limits in search.items()}


def propose_points(optimizer: Mapping[str, Any], ranges: Mapping[str, Range], count: int) -> list[Values]:
    """Return the values of each trial: the optimizer's own, then those of the list.

    Args:
        optimizer: its composed configuration.
        ranges: by dotted key.
        count: number of points.
    """
    from scipy.stats import qmc

    own = {key: optimizer[key.removeprefix(PREFIX)] for key in ranges}
    rows = qmc.Halton(len(ranges), scramble=False).random(count)[1:].tolist()
    return [own, *({key: ranges[key].scaled(u) for key, u in zip(ranges, row, strict=True)} for row in rows)]


def _read_range(name: str, limits: Any, optimizer: Mapping[str, Any]) -> Range:
    if name not in optimizer:
        raise UserError(f"optimizer.search.{name}: {optimizer['name']} has no hyper-parameter {name}")
    settings = load_settings(optimizer["module"])
    bounds = settings.model_fields[name].metadata if settings else []
    least = next((float(str(bound.ge)) for bound in bounds if isinstance(bound, Ge)), None)
    most = next((float(str(bound.le)) for bound in bounds if isinstance(bound, Le)), None)
    below = next((float(str(bound.lt)) for bound in bounds if isinstance(bound, Lt)), None)
    further = isinstance(optimizer[name], int), least, most, below
    match limits:
        case [float() | int() as low, float() | int() as high, "log"] if 0 < low < high:
            return Range(low, high, "log", *further)
        case [float() | int() as low, float() | int() as high, "linear"] if low < high:
            return Range(low, high, "linear", *further)
    raise UserError(
        f"optimizer.search.{name}={limits}: not a range; write [low, high, log] or [low, high, linear], low < high"
    )
