"""The leaderboard: `suite board` ranks result files and writes one static page that anyone can rebuild.

Results rank together only within one task version, variant, scale, data, batch size and target; tuned and untuned
ones never. Rows say how many seeds they rest on, and runs that missed, diverged or failed count. The same results
give the same bytes, whatever their order: nothing on the page depends on when or where it was built.
"""

import argparse
import hashlib
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median_low
from typing import Any

from suite import published
from suite.contract import Target, UserError
from suite.stats import Observation, Summary, summarize

SCHEMA = 1
Result = dict[str, Any]  # one result.json
HEADER = "header.json"  # a run's notes to itself, beside its result

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
    optimizer: str
    comm: str
    backend: str
    world: int
    settings: dict[str, Any]  # the config's entries that differ within the group
    steps: Summary | None  # None: no run has come to an end
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
    batch_size: int
    target: dict[str, Any] | None  # None: every run failed before its targets were known
    tuned: bool
    entries: tuple[Entry, ...]
    published: tuple[str, ...]  # ids of published rows the results stand beside

    @property
    def stand_in(self) -> bool:
        """Whether the runs are smaller than the published ones."""
        return self.scale != "paper"

    @property
    def title(self) -> str:
        """The conditions in one line."""
        scale = f"{self.scale} stand-in" if self.stand_in else self.scale
        data = f"{self.data['kind']}:{self.data['name']}@{self.data['identity'][:12]}"
        target = Target(**self.target) if self.target else "no target"
        tuned = "tuned" if self.tuned else "not tuned here"
        task = f"{self.task} v{self.task_version}"
        return " · ".join([task, self.variant, scale, data, f"batch {self.batch_size:,}", str(target), tuned])


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
    groups = [_group(json.loads(key), {file: files[file] for file in names}) for key, names in members.items()]
    return Leaderboard(tuple(sorted(groups, key=_group_order)), files, tuple(sorted(unreadable)))


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
    return group.task, group.task_version, group.variant, group.scale, group.batch_size, *target, group.name


def _group(condition: dict[str, Any], files: dict[str, Result]) -> Group:
    members: dict[str, dict[str, Result]] = defaultdict(dict)
    configs = {}
    for file, result in files.items():
        spec = result["spec"]
        config = {key: value for key, value in spec["config"].items() if key not in INCIDENTAL}
        config["precision"] = result["precision"]
        row = _text([*(spec[key] for key in COLUMNS), result["tuning"], config])
        members[row][file] = result
        configs[row] = _flat(config)
    names = sorted({name for config in configs.values() for name in config})
    differing = [name for name in names if len({_text(config.get(name)) for config in configs.values()}) > 1]
    entries = []
    for row, results in members.items():
        settings = {name: configs[row][name] for name in differing if name in configs[row]}
        entries.append(_entry(results, condition["target"], settings))
    return Group(
        name=f"{condition['task']}-{hashlib.sha256(_text(condition).encode()).hexdigest()[:8]}",
        entries=_ranked(entries),
        published=tuple(sorted({id for result in files.values() for id in result["published"]})),
        **condition,
    )


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
    return Entry(
        rank=None,
        **{key: results[0]["spec"][key] for key in COLUMNS},
        settings=settings,
        steps=_summary(results, target, "step"),
        timings=tuple(Timing(name, seconds) for name, seconds in timings if seconds),
        misses=dict(sorted(missed.items())),
        tuning=results[0]["tuning"],
        dirty=any(item["dirty"] for item in evidence),
        command=results[0]["command"],
        results=tuple(evidence),
    )


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
    medians = {entry.results[0]["file"]: _sortable(entry.steps) for entry in entries}

    def order(entry: Entry) -> tuple:
        file = entry.results[0]["file"]
        rate = entry.steps.hits / entry.steps.n if entry.steps else -1.0
        return medians[file], -rate, entry.optimizer, entry.comm, entry.backend, entry.world, file

    def placed(entry: Entry) -> Entry:
        own = medians[entry.results[0]["file"]]
        return replace(entry, rank=None if math.isinf(own) else 1 + sum(other < own for other in medians.values()))

    return tuple(placed(entry) for entry in sorted(entries, key=order))


def _sortable(summary: Summary | None) -> float:
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


# ------------------------------------------------------------------------------------------------- the page
def render(leaderboard: Leaderboard, out: Path) -> None:
    """Write `index.html`, `leaderboard.json` and the results themselves (`raw/`) under `out`."""
    import jinja2

    (out / "raw").mkdir(parents=True, exist_ok=True)
    for file, result in leaderboard.results.items():
        _write(out / "raw" / file, json.dumps(result, sort_keys=True, ensure_ascii=False, indent=1))
    groups = [{**asdict(group), "title": group.title, "stand_in": group.stand_in} for group in leaderboard.groups]
    document = {"schema": SCHEMA, "groups": groups, "unreadable": leaderboard.unreadable}
    _write(out / "leaderboard.json", json.dumps(document, sort_keys=True, ensure_ascii=False, indent=1))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("suite"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": _number, "median": _median, "interval": _interval, "sortable": _sortable}
    page = environment.get_template("board.html.j2")
    text = page.render(leaderboard=leaderboard, rows_for=published.rows_for, comparison=published.comparison)
    _write(out / "index.html", text)


def _write(path: Path, text: str) -> None:
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8", newline="\n")


def _number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if abs(value) >= 100 and value == int(value) else f"{value:,.4g}"


def _median(summary: Summary) -> str:
    if summary.median is not None:
        return _number(summary.median)
    return "never" if summary.beyond is None else f"> {_number(summary.beyond)}"


def _interval(summary: Summary) -> str:
    if summary.n == 1 or summary.low is None:
        return ""
    high = "beyond the budget" if summary.high is None else _number(summary.high)
    return f"{_number(summary.low)} to {high}, covers {summary.coverage:.0%}"


# ---------------------------------------------------------------------------------------------- command line
def _collect(folders: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """Results under the folders, and what is wrong with the other JSON files."""
    results, unreadable = [], []
    for file in sorted(file for folder in folders for file in folder.rglob("*.json") if file.name != HEADER):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}, this suite reads {SCHEMA}")
            _ = [group.title for group in rank([content]).groups]  # whatever is missing shows here
        except KeyError as error:
            unreadable.append(f"{file.as_posix()}: no result, it lacks {error}")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            unreadable.append(f"{file.as_posix()}: no result ({error})")
        else:
            results.append(content)
    return results, unreadable


def _server(out: Path, port: int) -> ThreadingHTTPServer:
    return ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=str(out)))


def main(argv: list[str]) -> int:
    """`suite board`: exit code 0, also where some files could not be read (they are named)."""
    parser = argparse.ArgumentParser(prog="suite board", description="Rebuild the leaderboard from result files.")
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="where to write (site)")
    parser.add_argument(
        "--results", type=Path, nargs="+", metavar="DIR", help="where results lie (results/runs and runs, if there)"
    )
    parser.add_argument(
        "--serve", type=int, nargs="?", const=8000, metavar="PORT", help="then show it on http://127.0.0.1:PORT (8000)"
    )
    arguments = parser.parse_args(argv)
    folders = arguments.results or [folder for folder in (Path("results/runs"), Path("runs")) if folder.is_dir()]
    if absent := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UserError(f"no such folder: {', '.join(absent)}. Name folders with results: suite board --results DIR …")
    results, unreadable = _collect(folders)
    for line in unreadable:
        print(f"left out {line}", file=sys.stderr)
    leaderboard = rank(results, unreadable=unreadable)
    render(leaderboard, arguments.out)
    left_out = f", {len(unreadable)} files left out" if unreadable else ""
    print(
        f"{arguments.out / 'index.html'}: {len(leaderboard.groups)} groups "
        f"from {len(leaderboard.results)} results{left_out}"
    )
    if arguments.serve is not None:
        with _server(arguments.out, arguments.serve) as server:
            print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print()
    return 0
