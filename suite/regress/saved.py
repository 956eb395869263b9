"""Measurements that were saved earlier: reports of `suite regress --json`, and results of runs."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.entries.intake import find_files
from suite.record import record
from suite.record.environment import describe_environment, describe_machine
from suite.record.result import Result
from suite.regress.benchmarks import Benchmark


@dataclass(frozen=True)
class Report:
    """Side B of one report of `suite regress --json`.

    Attributes:
        date: when it was written, in UTC.
        name: of the side: its commit, or what was typed.
        machine: processor, cores and GPUs.
        values: of each benchmark, one per round, in the benchmark's unit.
    """

    date: str
    name: str
    machine: str
    values: Mapping[Benchmark, tuple[float, ...]]


@dataclass(frozen=True)
class Saved:
    """Measurements of one side.

    Attributes:
        machine: on which all of them were made.
        values: of each benchmark, in the order in which they were made.
    """

    machine: str
    values: Mapping[Benchmark, tuple[float, ...]]


def list_files(path: Path) -> list[Path]:
    """List the JSON files in a folder and below it that may be results or reports, or the file itself."""
    return sorted(find_files(path)) if path.is_dir() else [path]


def read_report(file: Path) -> Report:
    """Read a report.

    Raises:
        UserError: if the file is not a report.
    """
    return _parsed(file, _report, "a report of suite regress --json")


def find_saved(path: Path, metric: str) -> Saved:
    """Find the measurements in a file or folder, of reports and of results.

    A benchmark of results is named after task, data, optimizer, communication mode, number of ranks and backend.

    Args:
        path: a report, a result, or a folder of them.
        metric: what is read from results.

    Raises:
        UserError: if there are none, if they come from several machines, or if a result lacks the metric.
    """
    machines: set[str] = set()
    values: dict[Benchmark, list[float]] = {}
    for one in sorted((_either(file, metric) for file in list_files(path)), key=lambda one: one.date):
        machines.add(one.machine)
        for benchmark, numbers in one.values.items():
            values.setdefault(benchmark, []).extend(numbers)
    if not values:
        raise UserError(f"{path}: no measurements there; suite regress --json FILE writes some")
    if len(machines) > 1:
        raise UserError(f"{path}: measurements of several machines ({'; '.join(sorted(machines))}); name those of one")
    return Saved(machines.pop(), {benchmark: tuple(numbers) for benchmark, numbers in values.items()})


def list_shared(sides: Sequence[Saved], alone: bool) -> list[Benchmark]:
    """List the benchmarks that saved sides have in common.

    Args:
        sides: the saved ones, one or two.
        alone: whether no side is measured now.

    Raises:
        UserError: if the sides come from different machines, or cannot be compared.
    """
    machines = dict.fromkeys([side.machine for side in sides] + ([] if alone else [describe_machine()]))
    if len(machines) > 1:
        raise UserError(f"times of different machines are never compared: {'; '.join(machines)}")
    both = [benchmark for benchmark in sides[0].values if benchmark in sides[-1].values]
    if not both:
        names = [", ".join(benchmark.name for benchmark in side.values) for side in sides]
        raise UserError(f"the saved sides have no benchmark in common: {names[0]}; and {names[-1]}")
    if not alone and not all(benchmark.run for benchmark in both):
        raise UserError("results of runs are compared with results; compare a commit with a report of --json")
    return both


def _either(file: Path, metric: str) -> Report:
    def parse(content: dict[str, Any]) -> Report:
        return _result(record.make_result(content), metric) if "spec" in content else _report(content)

    return _parsed(file, parse, "a report of suite regress --json, or a result of a run")


def _parsed(file: Path, parse: Callable[[dict[str, Any]], Report], expected: str) -> Report:
    try:
        return parse(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file}: not {expected} ({cause})") from error


def _report(content: dict[str, Any]) -> Report:
    side = content["sides"]["B"]
    name = (side["commit"] or "")[:12] or str(side["typed"])
    return Report(str(content["date"]), name, str(content["machine"]), dict(_measured(content["benchmarks"])))


def _measured(entries: list[dict[str, Any]]) -> Iterator[tuple[Benchmark, tuple[float, ...]]]:
    for entry in entries:
        numbers = tuple(float(b) for _, b in (*entry["first"], *entry["second"]))
        if numbers and all(0 < number < math.inf for number in numbers):
            yield Benchmark(str(entry["name"]), tuple(map(str, entry["run"])), str(entry["metric"])), numbers


def _result(result: Result, metric: str) -> Report:
    spec = result.spec
    data, ranks = spec.config["task"].get("data"), f"{spec.world} ranks" if (spec.world or 1) > 1 else ""
    words = "/".join(filter(None, [spec.task, data, spec.optimizer])), spec.comm, ranks, spec.backend
    benchmark = Benchmark(" ".join(filter(None, words)), (), metric)
    value = benchmark.value(result.plain(), math.nan)
    # results have no date; the order of the seeds pairs runs of one seed
    return Report(f"{spec.seed:09}", result.hash, describe_environment(result.environment), {benchmark: (value,)})
