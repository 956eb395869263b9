"""Checks a set of results: finds seeds that are missing, code that differs within a row, copies.

A row is what a reader of the leaderboard takes for one method: equal conditions (`condition.py`), optimizer,
communication, backend and devices.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from suite.entries.condition import CADENCE, TUNING_SEEDS, format_condition, read_condition
from suite.entries.finding import Entry, Finding, Severity
from suite.entries.strict import escape_text
from suite.record import record
from suite.record.record import is_baseline
from suite.record.result import Point
from suite.settings.effects import select_settings

COLUMNS = ("optimizer", "comm", "backend", "world")
BUDGET = "max_steps"  # with fewer steps a run has fewer chances to reach a target
MOST_NAMED = 6  # settings, seeds or versions that a sentence names
SEVERAL = 2  # evaluations from which on an equal curve is no coincidence


def check_set(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Everything that is found only by comparing results."""
    yield from _copies(entries)
    yield from _tuning(entries)
    rows: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        spec = entry.result.spec
        if not is_baseline(spec):
            key = {"condition": read_condition(entry.result), "columns": [getattr(spec, name) for name in COLUMNS]}
            rows[format_condition(key)].append(entry)
    for row in rows.values():
        settings_of = [_settings(entry) for entry in row]
        differing = _differing(settings_of)
        yield from _mixed(row, differing)
        names = [name for name in differing if name != CADENCE]  # the cadence does not change the training
        by_settings: dict[str, list[Entry]] = defaultdict(list)
        for entry, settings in zip(row, settings_of, strict=True):
            by_settings[format_condition([settings.get(name) for name in names])].append(entry)
        for alike in by_settings.values():
            yield from _versions(alike)
            yield from _seeds(alike)
    yield from _unchecked(entries)


def _settings(entry: Entry) -> dict[str, Any]:
    """Return the settings of a run that can change a number, as dotted keys."""
    return select_settings(record.load_run(entry.result), ("weights", "measurement"))


def _files(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(sorted(entry.file for entry in entries))


def row_name(entry: Entry) -> str:
    """A row in words: task, data, method, communication, backend and devices."""
    result = entry.result
    spec = result.spec
    data = spec.config["task"].get("data") or result.data.name
    words = [spec.task, data, record.method_of(spec), spec.comm, spec.backend, f"world {spec.world}"]
    return escape_text(" ".join(str(word) for word in words))


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find the settings in which results differ; one that older results lack counts only if others differ in it."""
    names = sorted({name for values in settings for name in values})
    return [
        name for name in names if len({format_condition(values[name]) for values in settings if name in values}) > 1
    ]


def _mixed(row: Sequence[Entry], differing: Sequence[str]) -> Iterator[Finding]:
    """Runs of one method under equal conditions, but with different settings."""
    if differing:
        listed = ", ".join(escape_text(name) for name in differing[:MOST_NAMED])
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        sentence = f"{row_name(row[0])}: {len(row)} results differ in {listed}{more}"
        remedy = "compare only runs of equal settings; the board shows the others as separate rows"
        severity: Severity = "doubtful" if BUDGET in differing else "note"
        yield Finding(severity, "settings", _files(row), sentence, remedy)


def _versions(alike: Sequence[Entry]) -> Iterator[Finding]:
    """Runs of equal settings that were made with different code or packages."""
    for name, words in (("source", "versions of the suite's code"), ("packages", "sets of packages")):
        values = {getattr(entry.result.environment, name) for entry in alike}
        if len(values) > 1:
            sentence = (
                f"{row_name(alike[0])}: {len(alike)} results of equal settings were made with {len(values)} {words}"
            )
            yield Finding("doubtful", "versions", _files(alike), sentence, "run the older ones again with the newest")


def _seeds(alike: Sequence[Entry]) -> Iterator[Finding]:
    """Seeds that are missing in a sequence, and seeds that chose the settings."""
    seeds = sorted({entry.result.spec.seed for entry in alike})
    gaps = [f"{low + 1}" if high - low == 2 else f"{low + 1} to {high - 1}" for low, high in _apart(seeds)]
    if gaps:
        reported = ", ".join(map(str, seeds[:MOST_NAMED])) + (", …" if len(seeds) > MOST_NAMED else "")
        sentence = f"{row_name(alike[0])}: has the seeds {reported}, but not {', '.join(gaps[:MOST_NAMED])}"
        yield Finding("doubtful", "seeds", _files(alike), sentence, "submit these seeds, too, whatever they gave")


def _tuning(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Reported seeds that also chose the settings, by recipe."""
    recipes: dict[tuple[str, str, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        tuning = entry.result.tuning
        if tuning.trials and entry.result.spec.seed in TUNING_SEEDS:
            recipes[entry.result.spec.task, tuning.source, tuning.trials].append(entry)
    first, last = TUNING_SEEDS[0], TUNING_SEEDS[-1]
    for (_, source, trials), tuned in recipes.items():
        seeds = sorted({entry.result.spec.seed for entry in tuned})
        reported = ", ".join(map(str, seeds))
        sentence = f"{escape_text(source)}: {len(tuned)} results report seeds among {reported}, but its settings are "
        sentence += f"the best of {trials} trials on the seeds {first} to {last}, and may suit these seeds"
        remedy = f"report seeds from {last + 1} on"
        yield Finding("doubtful", "tuning-seeds", _files(tuned), sentence, remedy)


def _apart(seeds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours in a sorted list that are not consecutive; the list is taken to begin at 0 or at its tuning's end."""
    start = seeds[0] if seeds[0] == TUNING_SEEDS[-1] + 1 else 0
    yield from ((low, high) for low, high in zip([start - 1, *seeds], seeds, strict=False) if high - low > 1)


def _copies(entries: Sequence[Entry]) -> Iterator[Finding]:
    """One execution with several contents, and several executions with one curve."""
    executions: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    metrics: dict[str, list[Entry]] = defaultdict(list)
    clocks: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        result = entry.result
        executions[result.execution_id][json.dumps(result.plain(), sort_keys=True)].append(entry)
        if len(result.curve) >= SEVERAL:
            metrics[format_condition([_without_clock(point) for point in result.curve])].append(entry)
            clocks[format_condition([point.train_seconds for point in result.curve])].append(entry)
    for execution, contents in executions.items():
        if len(contents) > 1:
            involved = [entry for alike in contents.values() for entry in alike]
            sentence = f"the execution {escape_text(execution)} has {len(contents)} results with different content"
            yield Finding("wrong", "copies", _files(involved), sentence, "keep the one that the run wrote")
    for alike in clocks.values():
        if len({entry.result.execution_id for entry in alike}) > 1:
            sentence = "different executions have the same training seconds at each evaluation, to the last digit"
            yield Finding("wrong", "copies", _files(alike), sentence, "keep the one that was run")
    for alike in metrics.values():
        seeds = sorted({entry.result.spec.seed for entry in alike})
        if len(seeds) > 1:
            sentence = (
                f"the seeds {', '.join(map(str, seeds))} have the same metrics at each evaluation, to the last digit"
            )
            yield Finding("wrong", "copies", _files(alike), sentence, "keep the one that was run, and run the others")


def _without_clock(point: Point) -> list[Any]:
    return [point.step, point.metrics]


def _unchecked(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Yield what results do not contain, so that nobody can check it from them."""
    alone = [entry for entry in entries if entry.events is None]
    if alone:
        sentence = (
            f"{len(alone)} of {len(entries)} results have no event log beside them; the numbers of their steps and "
        )
        sentence += "the times of single steps were not checked"
        yield Finding("note", "log", _files(alone), sentence, "submit run directories, which contain the log")
    sizes: dict[str, set[str]] = defaultdict(set)
    members: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        data = entry.result.data
        key = format_condition([entry.result.spec.task, data.name, record.identify_data(data)])
        sizes[key].add(format_condition([data.samples, data.dropped, data.skipped]))
        members[key].append(entry)
    for key, counts in sizes.items():
        if len(counts) > 1:
            name = escape_text(json.loads(key)[1])
            sentence = (
                f"results on {name} of one checksum have {len(counts)} different splits into training and validation"
            )
            remedy = "samples of one's training split may be in the other's validation split; compare within one split"
            yield Finding("doubtful", "overlap", _files(members[key]), sentence, remedy)
    if entries:
        sentence = (
            "a result has the number of samples in each split and a checksum of the data, but no names of samples; "
        )
        sentence += "whether a validation sample was trained on cannot be checked from it"
        yield Finding(
            "note", "overlap", _files(entries), sentence, "suite data TASK --check reads the files themselves"
        )
