"""Series of measurements from the reports of `suite regress --json`, and where they change."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from suite.contract import UserError
from suite.regress.changes import Change, changes
from suite.regress.show import amount


@dataclass(frozen=True)
class Point:
    """Side B of one report.

    Attributes:
        date: when the report was written, in UTC.
        name: of the side, with the commit if there is one.
        value: median of its rounds, in the benchmark's unit.
    """

    date: str
    name: str
    value: float


@dataclass(frozen=True)
class Series:
    """One benchmark on one machine. Times of different machines are never compared.

    Attributes:
        benchmark: its name.
        metric: that was measured.
        run: its overrides.
        machine: processor and number of cores.
        points: by date.
    """

    benchmark: str
    metric: str
    run: tuple[str, ...]
    machine: str
    points: tuple[Point, ...]

    @property
    def changes(self) -> list[Change]:
        """The places where the level changes."""
        return changes([point.value for point in self.points])


def read(paths: Sequence[Path]) -> list[Series]:
    """The series in some reports.

    Args:
        paths: files, or folders with them.

    Raises:
        UserError: if there is no report, or a file is not one.
    """
    files = [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise UserError(f"--history {' '.join(map(str, paths))}: no report there; suite regress --json FILE writes one")
    found: dict[tuple[str, str, tuple[str, ...], str], list[Point]] = {}
    for file in files:
        for key, point in _points(file):
            found.setdefault(key, []).append(point)
    return [Series(*key, tuple(sorted(points, key=lambda point: point.date))) for key, points in sorted(found.items())]


def _points(file: Path) -> Iterator[tuple[tuple[str, str, tuple[str, ...], str], Point]]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        side = report["sides"]["B"]
        name = (side["commit"] or "")[:12] or str(side["typed"])
        for entry in report["benchmarks"]:
            values = [float(b) for _, b in (*entry["first"], *entry["second"])]
            if values and all(value > 0 for value in values):
                key = str(entry["name"]), str(entry["metric"]), tuple(map(str, entry["run"])), str(report["machine"])
                yield key, Point(str(report["date"]), name, median(values))
    except (OSError, UnicodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file}: not a report of suite regress --json ({cause})") from error


def lines(series: Iterable[Series]) -> Iterator[str]:
    """A line for each series, and one for each of its changes."""
    for one in series:
        first, last = one.points[0], one.points[-1]
        yield (
            f"{one.benchmark} {one.metric} · {one.machine} · {len(one.points)} reports, {first.date[:10]} to "
            f"{last.date[:10]}, now {amount(last.value, one.metric)}"
        )
        found = one.changes
        if not found:
            yield "    no change"
        for change in found:
            point = one.points[change.index]
            before, after = (amount(value, one.metric) for value in (change.before, change.after))
            ratio = change.after / change.before - 1
            yield f"    {point.date[:10]} {point.name}: {before} -> {after} ({ratio:+.1%}), p = {change.p:.3f}"


def as_dict(series: Iterable[Series]) -> list[dict[str, Any]]:
    """The series and their changes, for JSON."""
    return [
        {
            "benchmark": one.benchmark,
            "metric": one.metric,
            "run": list(one.run),
            "machine": one.machine,
            "points": [{"date": point.date, "name": point.name, "value": point.value} for point in one.points],
            "changes": [vars(change) for change in one.changes],
        }
        for one in series
    ]
