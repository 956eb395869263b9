"""The leaderboard: how results are grouped and ranked. `suite/page.py` shows it, `suite board` builds it.

Results rank together only within one task version, variant, scale, data, batch size and target; tuned and untuned
ones never. Rows say how many seeds they rest on, and runs that missed, diverged or failed count. The same results
give the same leaderboard, whatever their order.
"""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from suite import record
from suite.contract import Target
from suite.stats import Observation, Summary, summarize

SCHEMA = 1
Result = dict[str, Any]  # one result.json

# Entries of a config that change neither data nor mathematics: runs that differ only here share a row.
INCIDENTAL = {"seed", "repeat", "run_dir", "force", "track", "launch", "require", "data_dir", "device", "threads"}
INCIDENTAL |= {"checkpoint_every", "log_every", "tuning"}  # the last has a column of its own
COLUMNS = ("optimizer", "comm", "backend", "world")


@dataclass(frozen=True)
class Timing:
    """Training seconds to the target on one kind of machine."""

    machine: str
    seconds: Summary


@dataclass(frozen=True)
class Entry:
    """One row: what was run, how soon it reached the target, and the results it rests on."""

    rank: int | None  # None: the median seed does not reach the target
    optimizer: str  # or a baseline
    comm: str | None  # this, the next two and the steps are None for a baseline
    backend: str | None
    world: int | None
    settings: dict[str, Any]  # the config's entries that differ within the group
    steps: Summary | None  # None: no run has come to an end
    tries: Summary | None  # the steps; of a baseline the seconds: for their seeds and hits
    score: float | None  # of a baseline: the target's metric, the middle one of its results
    timings: tuple[Timing, ...]
    misses: dict[str, int]  # executions that did not reach the target, by outcome
    tuning: dict[str, Any]
    dirty: bool  # some result was not made on a clean commit
    command: str
    results: tuple[dict[str, Any], ...]  # seed, file, commit, dirty


@dataclass(frozen=True)
class Group:
    """Results that may be ranked together."""

    name: str
    task: str
    task_version: str
    variant: str
    scale: str
    data: dict[str, str]
    batch_size: int | None  # None: baselines, and no runs of the same data and target
    target: dict[str, Any] | None  # None: every run failed before its targets were known
    tuned: bool
    entries: tuple[Entry, ...]
    published: tuple[str, ...]  # ids of published rows the results stand beside
    note: str  # what may be concluded from the data

    @property
    def stand_in(self) -> bool:
        """Whether the runs are smaller than the published ones."""
        return self.scale != "paper"

    @property
    def goal(self) -> str:
        """The target, as a run prints it."""
        return str(Target(**self.target)) if self.target else "no target"

    @property
    def label(self) -> str:
        """The data as a result names it: a checksum may be cut, a version not."""
        identity = self.data["identity"][:12] if self.data["kind"] == "real" else self.data["identity"]
        return f"{self.data['kind']}:{self.data['name']}@{identity}"

    @property
    def batch(self) -> str:
        """The batch size in words."""
        return f"batch {self.batch_size:,}" if self.batch_size else "no batches"

    @property
    def title(self) -> str:
        """The conditions in one line."""
        scale = f"{self.scale} stand-in" if self.stand_in else self.scale
        tuned = "tuned" if self.tuned else "not tuned here"
        task = f"{self.task} v{self.task_version}"
        return " · ".join([task, self.variant, scale, self.label, self.batch, self.goal, tuned])


@dataclass(frozen=True)
class Leaderboard:
    """All groups, and the results they rest on by file name."""

    groups: tuple[Group, ...]
    results: dict[str, Result]
    unreadable: tuple[str, ...] = ()


def rank(results: Iterable[Result], *, unreadable: Iterable[str] = ()) -> Leaderboard:
    """Group and rank results; a pure function of their set.

    Args:
        results: contents of result.json files; equal ones count once.
        unreadable: names of files that are no results, to be mentioned on the page.
    """
    files = {_digest(result): result for result in results}
    ladders: dict[str, dict[str, dict]] = defaultdict(dict)
    for result in files.values():
        for target in result["targets"]:
            ladders[_text(_condition(result))][_text(_rung(target))] = _rung(target)
    members: dict[str, list[str]] = defaultdict(list)
    for file, result in files.items():
        condition = _condition(result)
        # a run that failed before it knew its targets counts at every rung of its ladder
        rungs = [_rung(target) for target in result["targets"]] or list(ladders[_text(condition)].values())
        for rung in rungs or [None]:
            members[_text({**condition, "target": rung})].append(file)
    _set_beside(members)
    groups = [_group(json.loads(key), {file: files[file] for file in names}) for key, names in members.items()]
    return Leaderboard(tuple(sorted(groups, key=_group_order)), files, tuple(sorted(unreadable)))


def _set_beside(members: dict[str, list[str]]) -> None:
    """Show baselines in every group of runs on their data and target: they have neither batch size nor tuning.

    Where there is no such group, they are one.
    """

    def fit(key: str) -> str:
        return _text(json.loads(key) | {"batch_size": None, "tuned": False})

    for key in [key for key in members if json.loads(key)["batch_size"] is None]:
        groups = [other for other in members if other != key and fit(other) == key]
        baselines = members.pop(key) if groups else []
        for group in groups:
            members[group] = members[group] + baselines


def _condition(result: Result) -> dict[str, Any]:
    """What must be equal for two results to rank together, but for the target."""
    spec, data = result["spec"], result["data"]
    return {
        **{key: spec[key] for key in ("task", "variant", "scale", "batch_size")},
        "task_version": result["task_version"],
        "data": {key: data[key] for key in ("kind", "name", "identity")},
        "tuned": bool(result["tuning"]["trials"]),
    }


def _rung(target: Mapping[str, Any]) -> dict[str, Any]:
    return {key: target[key] for key in ("metric", "value", "higher_is_better")}


def _group_order(group: Group) -> tuple:
    target = (group.target["metric"], group.target["value"]) if group.target else ("", 0.0)
    return group.task, group.task_version, group.variant, group.scale, group.batch_size or 0, *target, group.name


def _group(condition: dict[str, Any], files: dict[str, Result]) -> Group:
    members: dict[str, dict[str, Result]] = defaultdict(dict)
    configs: dict[bool, dict[str, dict[str, Any]]] = {True: {}, False: {}}  # baselines' apart, by row
    for file, result in files.items():
        spec = result["spec"]
        config = {key: value for key, value in spec["config"].items() if key not in INCIDENTAL}
        config["precision"] = result["precision"]
        row = _text([*(spec[key] for key in COLUMNS), result["tuning"], config])
        members[row][file] = result
        configs["baseline" in spec][row] = _flat(config)
    settings = _differing(configs[True]) | _differing(configs[False])
    entries = [_entry(results, condition["target"], settings[row]) for row, results in members.items()]
    return Group(
        name=f"{condition['task']}-{hashlib.sha256(_text(condition).encode()).hexdigest()[:8]}",
        entries=_ranked(entries),
        published=tuple(sorted({id for result in files.values() for id in result["published"]})),
        note=min(result["data"]["note"] for result in files.values()),
        **condition,
    )


def _differing(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each row's configuration, the entries in which the rows are not all the same."""
    names = sorted({name for config in configs.values() for name in config})
    differing = [name for name in names if len({_text(config.get(name)) for config in configs.values()}) > 1]
    return {row: {name: config[name] for name in differing if name in config} for row, config in configs.items()}


def _entry(files: dict[str, Result], target: dict[str, Any] | None, settings: dict[str, Any]) -> Entry:
    ordered = sorted(files.items(), key=lambda item: (item[1]["spec"]["seed"], item[0]))
    results = [result for _, result in ordered]
    machines: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        machines[_machine(result)].append(result)
    timings = ((name, _summary(some, target, "train_seconds")) for name, some in sorted(machines.items()))
    evidence = []
    for file, result in ordered:
        commit, dirty = result["environment"]["commit"], result["environment"]["dirty"] is not False
        evidence.append({"seed": result["spec"]["seed"], "file": file, "commit": commit, "dirty": dirty})
    missed = Counter(result["outcome"]["kind"] for result in results if not _crossing(result, target))
    spec = results[0]["spec"]
    steps = None if "baseline" in spec else _summary(results, target, "step")
    columns: dict[str, Any] = {key: spec[key] for key in COLUMNS} | {"optimizer": record.method(spec["config"])}
    return Entry(
        rank=None,
        **columns,
        settings=settings,
        steps=steps,
        tries=steps or _summary(results, target, "train_seconds"),
        score=_score(results, target) if "baseline" in spec else None,
        timings=tuple(Timing(name, seconds) for name, seconds in timings if seconds),
        misses=dict(sorted(missed.items())),
        tuning=results[0]["tuning"],
        dirty=any(item["dirty"] for item in evidence),
        command=results[0]["command"],
        results=tuple(evidence),
    )


def _score(results: list[Result], target: dict[str, Any] | None) -> float | None:
    """What those results that have an evaluation came to, by the target's metric."""
    found = [result["curve"][-1]["metrics"][target["metric"]] for result in results if target and result["curve"]]
    return median_low(found) if found else None


def _crossing(result: Result, target: dict[str, Any] | None) -> dict[str, Any] | None:
    """Where the run reached the target, if it did."""
    return next((rung for rung in result["targets"] if rung["reached"] and _rung(rung) == target), None)


def _summary(results: list[Result], target: dict[str, Any] | None, unit: str) -> Summary | None:
    """Over seeds, each by the middle one of its executions; interrupted runs tell nothing."""
    seeds: dict[int, list[tuple[bool, float]]] = defaultdict(list)  # (missed, spent), so that misses sort last
    for result in results:
        seed, kind = result["spec"]["seed"], result["outcome"]["kind"]
        if crossing := _crossing(result, target):
            seeds[seed].append((False, crossing[unit]))
        elif kind in ("diverged", "failed"):
            seeds[seed].append((True, math.inf))
        elif kind != "interrupted":
            seeds[seed].append((True, max((point[unit] for point in result["curve"]), default=0)))
    middle = [median_low(executions) for executions in seeds.values()]
    return summarize(Observation(spent, not missed) for missed, spent in middle) if middle else None


def _ranked(entries: list[Entry]) -> tuple[Entry, ...]:
    """By the median of steps to target; then by hit rate, for those whose median seed misses."""
    medians = {entry.results[0]["file"]: sortable(entry.steps) for entry in entries}

    def order(entry: Entry) -> tuple:
        file = entry.results[0]["file"]
        rate = entry.steps.hits / entry.steps.n if entry.steps else -1.0
        return medians[file], -rate, entry.optimizer, entry.comm, entry.backend, entry.world, file

    def placed(entry: Entry) -> Entry:
        own = medians[entry.results[0]["file"]]
        return replace(entry, rank=None if math.isinf(own) else 1 + sum(other < own for other in medians.values()))

    return tuple(placed(entry) for entry in sorted(entries, key=order))


def sortable(summary: Summary | None) -> float:
    """The median for sorting; infinite where it is not reached."""
    return math.inf if summary is None or summary.median is None else summary.median


def _machine(result: Result) -> str:
    """What the run ran on; the devices of all its segments, should it have been resumed elsewhere."""
    environment = result["environment"]
    devices = dict.fromkeys(segment["device"] for segment in result["segments"])
    return f"{' then '.join(devices)} · {environment['cpu']} · {environment['threads']} threads"


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names and values, without the members' names, which are columns, and addresses."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif key not in (*COLUMNS, "name", "module"):
            flat[prefix + key] = value
    return flat


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _digest(result: Result) -> str:
    return hashlib.sha256(_text(result).encode()).hexdigest()[:16] + ".json"
