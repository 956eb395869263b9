"""Groups and ranks results for the leaderboard. `suite/board/rows.py` makes the rows, `suite/board/site/` the pages.

Results rank together only if they have the same task version, variant, scale, data, batch size, target, and settings of
data, model and metric. Tuned and untuned results never rank together. Each row states its number of seeds; runs that
missed the target, diverged or failed count. The same results give the same leaderboard in any order.
"""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from suite.board.design import Design, find_design
from suite.board.rows import COLUMNS, Entry, make_entry, rank_median
from suite.contract import Target
from suite.entries.condition import add_baselines, format_condition, read_condition, read_rung, select_reported
from suite.entries.doubts import Doubt
from suite.record import record
from suite.record.record import is_baseline
from suite.record.result import Result
from suite.record.versions import find_successor
from suite.settings.effects import select_settings

SCHEMA = 2  # of leaderboard.json; docs/leaderboard.md describes its fields


@dataclass(frozen=True)
class Group:
    """Results that rank together."""

    name: str
    task: str
    task_version: str
    variant: str
    scale: str
    data: dict[str, str]
    samples: dict[str, int]  # of the data, by split
    parameters: int | None  # of the network; None: only baselines
    settings: dict[str, Any]  # the task's settings that change data, model or metric
    batch_size: int | None  # None: only baselines
    target: dict[str, Any] | None  # None: every run failed before its targets were known
    tuned: bool
    entries: tuple[Entry, ...]
    published: tuple[str, ...]  # ids of the task's published rows
    note: str  # a remark on the data
    initial_weights: str | None = None  # sha256 of the weights in init_from; None: drawn by the seed
    special: dict[str, Any] = field(default_factory=dict)  # differences from other groups of the task and scale
    superseded_by: str | None = None  # the task's newer version, in which these settings give other numbers

    @property
    def stand_in(self) -> bool:
        """Return whether the runs are smaller than the published ones."""
        return self.scale != "paper"

    @property
    def goal(self) -> str:
        """Target in words, as a run prints it."""
        return str(Target(**self.target)) if self.target else "no target"

    @property
    def label(self) -> str:
        """Data in words; a checksum is shortened, a version is not."""
        identity = self.data["identity"][:12] if self.data["kind"] == "real" else self.data["identity"]
        return f"{self.data['kind']}:{self.data['name']}@{identity}"

    @property
    def batch(self) -> str:
        """Batch size in words."""
        return f"batch {self.batch_size:,}" if self.batch_size else "no batches"

    @property
    def title(self) -> str:
        """Conditions in one line."""
        scale = f"{self.scale} stand-in" if self.stand_in else self.scale
        tuned = "tuned" if self.tuned else "not tuned here"
        task = f"{self.task} v{self.task_version}"
        return " · ".join([task, self.variant, scale, self.label, self.batch, *self.specials, self.goal, tuned])

    @property
    def specials(self) -> list[str]:
        """Differences from other groups of the task, variant and scale, in words."""
        return [
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in self.special.items()
        ]

    @property
    def design(self) -> Design | None:
        """Registered design of the ladder."""
        data = self.settings.get("data", self.data["name"])  # a grid names data as a command does: frnn's simulated
        return find_design(self.task, data, tuned=self.tuned, scale=self.scale)

    @property
    def conditions(self) -> dict[str, Any]:
        """Everything that must be equal for results to rank together, apart from the target."""
        names = (
            "task",
            "task_version",
            "variant",
            "scale",
            "data",
            "samples",
            "parameters",
            "initial_weights",
            "settings",
            "batch_size",
            "tuned",
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Leaderboard:
    """All groups, and all results by file name."""

    groups: tuple[Group, ...]
    results: dict[str, Result]
    unreadable: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()  # about any results
    unreported: int = 0  # results that do not count, because their seed chose their settings


def rank_results(
    results: Iterable[Result], *, unreadable: Iterable[str] = (), doubts: Iterable[Doubt] = ()
) -> Leaderboard:
    """Group and rank results; a pure function of the set of results.

    Args:
        results: contents of result.json files; equal ones count once.
        unreadable: one line for each file that is not a result; the page lists them.
        doubts: shown beside the results that they are about; they do not change the order.
    """
    known = {_digest(result): result for result in results}
    files = select_reported(known)
    conditions = {file: read_condition(result) for file, result in files.items()}
    rows = {file: _read_row(result) for file, result in files.items()}
    ladders: dict[str, dict[str, dict]] = defaultdict(dict)
    for file, result in files.items():
        for target in result.targets:
            ladders[format_condition(conditions[file])][format_condition(read_rung(target))] = read_rung(target)
    members: dict[str, list[str]] = defaultdict(list)
    for file, result in files.items():
        condition = conditions[file]
        # a run that failed before its targets were known counts for every target of its ladder
        rungs = [read_rung(target) for target in result.targets] or list(ladders[format_condition(condition)].values())
        for rung in rungs or [None]:
            members[format_condition({**condition, "target": rung})].append(file)
    add_baselines(members)
    groups = [_group(json.loads(key), {file: files[file] for file in names}, rows) for key, names in members.items()]
    groups = sorted(_with_differences(groups), key=_group_order)
    return Leaderboard(tuple(groups), files, tuple(sorted(unreadable)), tuple(doubts), len(known) - len(files))


def _with_differences(groups: Iterable[Group]) -> list[Group]:
    """Add to each group how it differs from other groups of the same task, variant, scale and data source."""
    alike: dict[tuple, list[Group]] = defaultdict(list)
    for group in groups:
        source = (group.data["kind"], group.data["name"])
        alike[group.task, group.task_version, group.variant, group.scale, source].append(group)
    return [
        replace(group, special=special)
        for similar in alike.values()
        for group, special in zip(similar, _special(similar), strict=True)
    ]


def _weights(group: Group) -> str:
    return group.initial_weights[:12] if group.initial_weights else "drawn by the seed"


def _special(groups: list[Group]) -> list[dict[str, Any]]:
    """For each group, the sizes and settings in which the groups differ."""
    sizes = [
        {f"{split} samples": n for split, n in group.samples.items()}
        | {"parameters": group.parameters, "initial weights": _weights(group)}
        for group in groups
    ]
    features = {str(i): _flat(group.settings) | size for i, (group, size) in enumerate(zip(groups, sizes, strict=True))}
    return list(_differing(features).values())


def _group_order(group: Group) -> tuple:
    target = (group.target["metric"], group.target["value"]) if group.target else ("", 0.0)
    return group.task, group.task_version, group.variant, group.scale, group.batch_size or 0, *target, group.name


def _read_row(result: Result) -> tuple[str, dict[str, Any]]:
    """Return what the results of one row share, as text, and the settings that the row may show."""
    run = record.load_run(result)
    config = select_settings(run, ("weights", "measurement"))
    row = format_condition([*(getattr(result.spec, key) for key in COLUMNS), run.tuning.plain(), config])
    return row, {key: value for key, value in config.items() if _is_shown(key)}


def _group(condition: dict[str, Any], files: dict[str, Result], rows: dict[str, tuple[str, dict[str, Any]]]) -> Group:
    """Make a group from the results with the same condition, and the row of every file."""
    members: dict[str, dict[str, Result]] = defaultdict(dict)
    configs: dict[bool, dict[str, dict[str, Any]]] = {True: {}, False: {}}  # by row, baselines separately
    for file, result in files.items():
        row, config = rows[file]
        members[row][file] = result
        configs[is_baseline(result.spec)][row] = config
    settings = _differing(configs[True]) | _differing(configs[False])
    entries = [make_entry(results, condition["target"], settings[row]) for row, results in members.items()]
    return Group(
        name=f"{condition['task']}-{hashlib.sha256(format_condition(condition).encode()).hexdigest()[:8]}",
        entries=_ranked(entries),
        published=tuple(sorted({id for result in files.values() for id in result.published})),
        note=_choose_note(files.values()),
        superseded_by=_find_successor(next(iter(files.values()))),  # the others have the same version and settings
        **condition,
    )


def _choose_note(results: Iterable[Result]) -> str:
    """Return the remark on the data that most results have; a single result does not change the others'."""
    counts = Counter(result.data.note for result in results)
    return min(counts, key=lambda note: (-counts[note], note))


def _find_successor(result: Result) -> str | None:
    return find_successor(record.load_run(result), result.task_version)


def _differing(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each row, the settings in which the rows differ."""
    names = sorted({name for config in configs.values() for name in config})
    differing = [name for name in names if len({format_condition(config.get(name)) for config in configs.values()}) > 1]
    return {row: {name: config[name] for name in differing if name in config} for row, config in configs.items()}


def _ranked(entries: list[Entry]) -> tuple[Entry, ...]:
    """Rank by the median of steps to the target; rows whose median seed misses follow by hit rate, without a rank."""
    medians = {entry.results[0]["file"]: rank_median(entry.steps) for entry in entries}

    def order(entry: Entry) -> tuple:
        file = entry.results[0]["file"]
        rate = entry.steps.hits / entry.steps.n if entry.steps else -1.0
        return medians[file], -rate, entry.optimizer, entry.comm or "", entry.backend or "", entry.world or 0, file

    def placed(entry: Entry) -> Entry:
        steps = medians[entry.results[0]["file"]]
        return replace(entry, rank=None if math.isinf(steps) else 1 + sum(other < steps for other in medians.values()))

    return tuple(placed(entry) for entry in sorted(entries, key=order))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key, without names (which are columns) and modules."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif _is_shown(key):
            flat[prefix + key] = value
    return flat


def _is_shown(key: str) -> bool:
    """Return whether a setting is shown where rows differ in it; names are columns, and follow modules."""
    return key.rpartition(".")[2] not in (*COLUMNS, "name", "module")


def _digest(result: Result) -> str:
    return (
        hashlib.sha256(json.dumps(result.plain(), sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]
        + ".json"
    )
