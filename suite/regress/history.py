"""Series of measurements from the reports of `suite regress --json`, and where they change."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from suite.contract import UserError
from suite.regress import saved
from suite.regress.benchmarks import Benchmark
from suite.regress.changes import Change, find_changes
from suite.regress.show import format_amount


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
        benchmark: that was measured.
        machine: processor and number of cores.
        points: by date.
    """

    benchmark: Benchmark
    machine: str
    points: tuple[Point, ...]

    @property
    def changes(self) -> list[Change]:
        """Places where the level changes."""
        return find_changes([point.value for point in self.points])


def read_history(paths: Sequence[Path]) -> list[Series]:
    """Read the series in some reports.

    Args:
        paths: files, or folders with them.

    Raises:
        UserError: if there is no report, or a file is not one.
    """
    reports = [saved.read_report(file) for path in paths for file in saved.list_files(path)]
    if not reports:
        raise UserError(f"--history {' '.join(map(str, paths))}: no report there; suite regress --json FILE writes one")
    points: dict[tuple[Benchmark, str], list[Point]] = {}
    for report in sorted(reports, key=lambda report: report.date):
        for benchmark, values in report.values.items():
            point = Point(report.date, report.name, median(values))
            points.setdefault((benchmark, report.machine), []).append(point)
    ordered = sorted(points.items(), key=lambda item: (item[0][0].name, item[0][0].metric, item[0][0].run, item[0][1]))
    return [Series(benchmark, machine, tuple(line)) for (benchmark, machine), line in ordered]


def format_history(series: Iterable[Series]) -> Iterator[str]:
    """A line for each series, and one for each of its changes."""
    for one in series:
        first, last = one.points[0], one.points[-1]
        metric = one.benchmark.metric
        yield (
            f"{one.benchmark.name} {metric} · {one.machine} · {len(one.points)} reports, {first.date[:10]} to "
            f"{last.date[:10]}, now {format_amount(last.value, metric)}"
        )
        found = one.changes
        if not found:
            yield "    no change"
        for change in found:
            point = one.points[change.index]
            before, after = (format_amount(value, metric) for value in (change.before, change.after))
            ratio = change.after / change.before - 1
            yield f"    {point.date[:10]} {point.name}: {before} -> {after} ({ratio:+.1%}), p = {change.p:.3f}"


def as_dict(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Return the series and their changes, for JSON."""
    return [
        {
            "benchmark": one.benchmark.name,
            "metric": one.benchmark.metric,
            "run": list(one.benchmark.run),
            "machine": one.machine,
            "points": [{"date": point.date, "name": point.name, "value": point.value} for point in one.points],
            "changes": [vars(change) for change in one.changes],
        }
        for one in series
    ]
