"""Finds the results and measured values that count for a check.

Results are those committed with the suite (`results/runs`) and those of this directory (`runs`). A study's values are
in `results/studies` and `runs/studies`, one file for each seed.
"""

import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

from suite import disk
from suite.claims import study
from suite.claims.claim import Check, Claim
from suite.claims.measure import Bounds, compute_quantity
from suite.contract import UserError
from suite.declared import Effect
from suite.entries.condition import CADENCE, TUNING_SEEDS
from suite.entries.intake import read_results
from suite.load import Plain, is_node, read_preset
from suite.record import environment, record
from suite.record.result import Result
from suite.record.versions import find_successor
from suite.settings.configure import resolve
from suite.settings.effects import select_settings

DECISIVE: tuple[Effect, ...] = ("weights", "measurement")
UNTIMED = "threads="  # threads=auto and threads=2 may be the same number
CHOICES = ("task", "optimizer", "backend", "comm", "scale", "world")  # keys of a result's `spec`
DEFAULT = "backend=torch"  # what a run without this word has, too
USUAL = {"comm": "float32", "world": "1", "scale": "laptop"}  # without an experiment
CHECKSUM = "crc32"  # of a study's value
AGAIN = "delete it and run suite reproduce CLAIM, which measures it again"  # about a damaged value
WORD = re.compile(r"[a-z]\w*")


Found = Sequence[tuple[str, Result]]  # results with their files
BySeed = dict[int, tuple[str, Result]]


@dataclass(frozen=True)
class Evidence:
    """Measurement for one check and seed."""

    seed: int
    bounds: Bounds
    files: tuple[str, ...]


def find_committed() -> Path:
    """Find the suite's own folder of results."""
    return Path(str(resources.files("suite.results")))


class Results:
    """All results of some folders, read once, and found by a run's overrides.

    Args:
        folders: of results and studies; by default the suite's own, then this directory's.
    """

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        chosen = (find_committed(), Path("runs")) if folders is None else folders
        self.folders = [folder for folder in chosen if folder.is_dir()]
        self._all: list[tuple[str, Result]] = []
        for folder in self.folders:
            for path in sorted(folder.rglob("*.json")):
                self._all += ((_label(path, folder), result) for result in read_results([path])[0])

    def of(self, overrides: str, check: Check) -> list[tuple[str, Result]]:
        """Return the results of a run with their files, sorted by name.

        At the published size, runs on generated data do not count.

        Args:
            overrides: of the run.
            check: that uses the run.
        """
        words = parse_overrides(overrides)
        plausible = [item for item in self._all if _counts(item[1], check) and may_be_of_run(words, item[1])]
        if not plausible:
            return []
        wanted = resolve_decisive(overrides)
        if check.measure and not (check.measure.steps_to or check.measure.seconds_to) and CADENCE not in words:
            wanted = {key: value for key, value in wanted.items() if key != CADENCE}
        found = [(path, result) for path, result in plausible if is_of_run(wanted, result)]
        return [item for item in found if not find_successor(record.load_run(item[1]), item[1].task_version)]


def _counts(result: Result, check: Check) -> bool:
    """Return whether a result may count for a check, whatever its settings."""
    if result.outcome.kind == "interrupted" or (check.scale == "published" and result.data.kind != "real"):
        return False
    return not (result.tuning.trials and result.spec.seed in TUNING_SEEDS)


def _label(path: Path, folder: Path) -> str:
    """A file's name in reports: below `results` or `runs`, wherever these are."""
    return (Path(folder.name) / path.relative_to(folder)).as_posix()


def parse_overrides(overrides: str) -> dict[str, str]:
    """Return the keys and values of overrides."""
    words = (word.lstrip("+~").partition("=") for word in shlex.split(overrides))
    return {key: value for key, _, value in words}


def may_be_of_run(words: Mapping[str, str], result: Result) -> bool:
    """Return whether a result has the choices and values that overrides name; composing the rest takes longer."""
    spec = result.spec
    if words.get("task", spec.task) != spec.task:
        return False  # most results, at once
    usual = _chosen_by(words["experiment"]) if "experiment" in words else USUAL
    chosen = {"backend": "torch", **usual, **words}
    own = {key: getattr(spec, key) for key in CHOICES if key in chosen}
    if any(value is not None and str(value) != chosen[key] for key, value in own.items()):
        return False
    settings = select_decisive(result)
    return not any(_differs(value, settings[key]) for key, value in words.items() if key in settings)


@cache
def _chosen_by(experiment: str) -> dict[str, str]:
    """Return the choices of an experiment's file, such as its task and scale."""
    entries = (entry for entry in read_preset("experiment", experiment).get("defaults", []) if is_node(entry))
    named = {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}
    return {key: value for key, value in named.items() if key in CHOICES}


def _differs(word: str, value: Plain) -> bool:
    """Return whether a value is another number or word than a typed one; other types are not compared."""
    if isinstance(value, bool):
        return word in ("true", "false") and word != str(value).lower()
    if isinstance(value, str):
        return WORD.fullmatch(word) is not None and word != value
    try:
        return isinstance(value, int | float) and float(word) != value
    except ValueError:
        return False  # such as null or an expression


def resolve_decisive(overrides: str) -> dict[str, Plain]:
    """Return the settings of a run, by dotted key, that affect its weights or what is measured."""
    return _composed(tuple(word for word in shlex.split(overrides) if word != DEFAULT))


@cache
def _composed(words: tuple[str, ...]) -> dict[str, Plain]:
    """Composing takes about 0.2 s, and checks share runs."""
    return select_settings(resolve(words), DECISIVE)


def select_decisive(result: Result) -> Mapping[str, Plain]:
    """Return the same settings of a result's run."""
    return _decisive(result.spec.settings)


@lru_cache(maxsize=4096)
def _decisive(config: str) -> Mapping[str, Plain]:
    """Every claim asks this of every result."""
    return select_settings(record.parse_run(config), DECISIVE)


def is_of_run(wanted: Mapping[str, Plain], result: Result) -> bool:
    """Return whether a result is of the run with the settings `wanted`, which may be few, up to the seed."""
    own = select_decisive(result)
    return all(key in own and own[key] == value for key, value in wanted.items()) and ("baseline.name" in own) == (
        "baseline.name" in wanted
    )


def describe_kind(result: Result) -> tuple[str, ...]:
    """Return what must be equal for seconds to be compared: processor, GPUs, device, threads, and settings of time."""
    facts, devices = result.environment, {segment.device for segment in result.segments}
    everything, decisive = select_settings(record.load_run(result), ("time",)), select_decisive(result)
    timing = [f"{key}={value}" for key, value in everything.items() if key not in decisive]
    threads = f"{facts.threads} threads"
    return (
        environment.describe_environment(facts),
        " then ".join(sorted(devices)),
        threads,
        *(w for w in timing if UNTIMED not in w),
    )


def collect_evidence(claim: Claim, check: Check, results: Results) -> list[Evidence]:
    """Everything measured for a check, by seed."""
    if check.study:
        return list(_of_study(claim, check, results.folders))
    if not check.runs:
        return []
    runs = {name: results.of(overrides, check) for name, overrides in check.runs.items()}
    chosen = _of_one_kind(check, runs)
    for name, found in chosen.items():
        chosen[name] = {seed: item for seed, item in found.items() if item[1].outcome.kind != check.excluding}
    seeds = sorted(_common_seeds(chosen))
    return [_evidence(check, seed, {name: by_seed[seed] for name, by_seed in chosen.items()}) for seed in seeds]


def _of_one_kind(check: Check, runs: Mapping[str, Found]) -> dict[str, BySeed]:
    """Select each seed's last result by name; for seconds, of the kind of machine with the most seeds."""
    if not is_in_seconds(check):
        return {name: _by_seed(found) for name, found in runs.items()}
    kinds = sorted({describe_kind(result) for found in runs.values() for _, result in found})
    choices = [
        {name: _by_seed(item for item in found if describe_kind(item[1]) == kind) for name, found in runs.items()}
        for kind in kinds
    ]
    complete = [len(_common_seeds(choice)) for choice in choices]
    empty: dict[str, BySeed] = {name: {} for name in runs}
    return choices[complete.index(max(complete))] if choices else empty


def name_differences(check: Check, results: Results) -> str:
    """A sentence if seconds of a check were measured on several kinds of machines, which are not compared; else ""."""
    found = [result for overrides in check.runs.values() for _, result in results.of(overrides, check)]
    kinds = sorted({describe_kind(result) for result in found}) if is_in_seconds(check) else []
    if len(kinds) < 2:
        return ""
    differing = [sorted(set(parts)) for parts in zip(*kinds, strict=False) if len(set(parts)) > 1]
    named = "; ".join(" and ".join(parts) for parts in differing)
    return f"seconds are compared only on one kind of machine, and these differ: {named}"


def is_in_seconds(check: Check) -> bool:
    """Return whether a check's quantity is a time, which depends on the machine."""
    measure = check.measure
    return measure is not None and bool(measure.seconds_to or (measure.field and "seconds" in measure.field))


def _common_seeds(runs: Mapping[str, BySeed]) -> set[int]:
    """Return the seeds for which every run has a result."""
    first, *others = ({*found} for found in runs.values())
    return first.intersection(*others)


def _by_seed(found: Iterable[tuple[str, Result]]) -> BySeed:
    return {result.spec.seed: (path, result) for path, result in found}


def _evidence(check: Check, seed: int, runs: Mapping[str, tuple[str, Result]]) -> Evidence:
    bounds = compute_quantity(check, {name: result for name, (_, result) in runs.items()})
    return Evidence(seed, bounds, tuple(path for path, _ in runs.values()))


def locate_value(folder: Path, claim: Claim, check: Check, seed: int) -> Path:
    """Return the file of a study's value."""
    return folder / "studies" / claim.id / f"{check.name}-s{seed}.json"


def _of_study(claim: Claim, check: Check, folders: Sequence[Path]) -> Iterator[Evidence]:
    by_seed: dict[int, Evidence] = {}
    for folder in folders:
        for path in sorted((folder / "studies" / claim.id).glob(f"{check.name}-s*.json")):
            content = disk.read_json(path, AGAIN)
            with disk.report_damage(path, AGAIN):
                if content.pop(CHECKSUM, None) not in (None, hash_value(content)):
                    raise ValueError("its checksum differs")
                if content["made_by"] == identify_study(check):
                    value = float("nan" if content["value"] is None else content["value"])
                    by_seed[content["seed"]] = Evidence(content["seed"], Bounds(value, value), (_label(path, folder),))
    yield from (by_seed[seed] for seed in sorted(by_seed))


def hash_value(content: Mapping[str, Plain]) -> str:
    """Return the checksum (crc32) of a study's value, which newer files contain."""
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def identify_study(check: Check) -> dict[str, Plain]:
    """Return what determines a study's value: its name, its arguments and the sha256 (12 digits) of the files it uses.

    Raises:
        UserError: if the study does not exist.
    """
    files = study.list_used_files(str(check.study))
    if not files:
        raise UserError(f"study: {check.study}: no such module in suite/studies")
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return {"study": check.study, "arguments": dict(check.arguments), "code": code}


def list_missing_seeds(check: Check, measured: Sequence[Evidence], count: int) -> list[int]:
    """List the seeds to measure next, so that `count` seeds are measured; tuned runs use no seed of the tuning."""
    used = {evidence.seed for evidence in measured}
    start = TUNING_SEEDS.stop if check.runs else 0
    candidates = (seed for seed in range(start, start + count + len(used)) if seed not in used)
    return [seed for seed, _ in zip(candidates, range(max(0, count - len(used))), strict=False)]
