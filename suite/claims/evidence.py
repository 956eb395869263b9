"""Finds the results and measured values that count for a check.

Results are those committed with the suite (`results/runs`) and those of this directory (`runs`). A study's values are
in `results/studies` and `runs/studies`, one file for each seed.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from suite.claims import study
from suite.claims.claim import Check, Claim
from suite.claims.measure import Bounds, Result, quantity
from suite.contract import UserError
from suite.entries.condition import CADENCE, INCIDENTAL, TUNING_SEEDS
from suite.load import preset
from suite.settings import configure
from suite.settings.overrides import flat

CHOICES = ("task", "optimizer", "backend", "comm", "scale", "world")  # keys of a result's `spec`
PLACES = ("data_dir", "cache_dir")  # settings of the task at any depth: where the data lies
DEFAULT = "backend=torch"  # what a run without this word has, too
USUAL = {"comm": "float32", "world": "1", "scale": "laptop"}  # without an experiment
WORD = re.compile(r"[a-z]\w*")
BASELINE = "baseline.name"


@dataclass(frozen=True)
class Evidence:
    """What was measured for one check and seed."""

    seed: int
    bounds: Bounds
    files: tuple[str, ...]


def committed() -> Path:
    """The suite's own folder of results."""
    return Path(str(resources.files("suite.results")))


class Results:
    """All results of some folders, read once, and found by a run's overrides.

    Args:
        folders: of results and studies; by default the suite's own, then this directory's.
    """

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        chosen = (committed(), Path("runs")) if folders is None else folders
        self.folders = [folder for folder in chosen if folder.is_dir()]
        self._all: list[tuple[str, Result]] = []
        for folder in self.folders:
            for path in sorted(folder.rglob("*.json")):
                if result := _read(path):
                    self._all.append((_label(path, folder), result))

    def of(self, overrides: str, check: Check) -> dict[int, tuple[str, Result]]:
        """The result of each seed of a run, with its file; of several the last by name.

        At the published size, runs on generated data do not count.

        Args:
            overrides: of the run.
            check: that uses the run.
        """
        words = typed(overrides)
        plausible = [item for item in self._all if _counts(item[1], check) and might_be(words, item[1])]
        if not plausible:
            return {}
        wanted, named = wanted_settings(overrides)
        if check.measure and not (check.measure.steps_to or check.measure.seconds_to) and CADENCE not in named:
            wanted = {key: value for key, value in wanted.items() if key != CADENCE}
        return {result["spec"]["seed"]: (path, result) for path, result in plausible if matches(wanted, named, result)}


def _counts(result: Result, check: Check) -> bool:
    """Whether a result may count for a check, whatever its settings."""
    if result["outcome"]["kind"] == "interrupted" or (check.scale == "published" and result["data"]["kind"] != "real"):
        return False
    return not (result["tuning"]["trials"] and result["spec"]["seed"] in TUNING_SEEDS)


def _label(path: Path, folder: Path) -> str:
    """A file's name in reports: below `results` or `runs`, wherever these are."""
    return (Path(folder.name) / path.relative_to(folder)).as_posix()


def _read(path: Path) -> Result | None:
    """The content of a file if it is a result, else None."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and {"spec", "curve", "targets", "outcome"} <= set(content) else None


def typed(overrides: str) -> dict[str, str]:
    """The keys and values of overrides."""
    words = (word.lstrip("+~").partition("=") for word in shlex.split(overrides))
    return {key: value for key, _, value in words}


def might_be(words: Mapping[str, str], result: Result) -> bool:
    """Whether a result agrees with the choices and values that overrides name; composing the rest takes longer."""
    usual = _chosen_by(words["experiment"]) if "experiment" in words else USUAL
    chosen = {"backend": "torch", **usual, **words}
    spec = result["spec"]
    if any(str(spec.get(key)) != chosen[key] for key in CHOICES if key in chosen and spec.get(key) is not None):
        return False
    return not any(_differs(value, spec["config"], key) for key, value in words.items() if key not in INCIDENTAL)


@cache
def _chosen_by(experiment: str) -> dict[str, str]:
    """The choices of an experiment's file, such as its task and scale."""
    entries = (entry for entry in preset("experiment", experiment).get("defaults", []) if isinstance(entry, dict))
    named = {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}
    return {key: value for key, value in named.items() if key in CHOICES}


def _differs(word: str, config: Mapping[str, Any], key: str) -> bool:
    """Whether a configuration has another number or word at a dotted key; other types are not compared."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return word in ("true", "false") and word != str(value).lower()
    if isinstance(value, str):
        return WORD.fullmatch(word) is not None and word != value
    try:
        return isinstance(value, int | float) and float(word) != value
    except ValueError:
        return False  # such as null or an expression


def wanted_settings(overrides: str) -> tuple[dict[str, Any], frozenset[str]]:
    """The settings of a run as dotted keys, and the keys that its overrides name."""
    return _composed(tuple(word for word in shlex.split(overrides) if word != DEFAULT)), frozenset(typed(overrides))


@cache
def _composed(words: tuple[str, ...]) -> dict[str, Any]:
    """The settings of a run as dotted keys. Composing takes about 0.2 s, and checks share runs."""
    return _settings(configure.compose(words, check=False))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's settings as dotted keys, without those that change no number."""
    leaves = flat({key: value for key, value in config.items() if key not in INCIDENTAL})
    return {key: value for key, value in leaves.items() if key.rpartition(".")[2] not in PLACES}


def matches(wanted: Mapping[str, Any], named: frozenset[str], result: Result) -> bool:
    """Whether a result is of the wanted run, up to the seed.

    A result may lack settings that are newer than it, unless the overrides name them.
    """
    own = _settings(result["spec"]["config"])
    if own.get(BASELINE) != wanted.get(BASELINE):  # a network and a baseline share the task's settings only
        return False
    if any(key in wanted and key not in own for key in named):
        return False
    return all(own[key] == value for key, value in wanted.items() if key in own)


def collect(claim: Claim, check: Check, results: Results) -> list[Evidence]:
    """Everything measured for a check, by seed."""
    if check.study:
        return list(_of_study(claim, check, results.folders))
    if not check.runs:
        return []
    by_run = {name: results.of(overrides, check) for name, overrides in check.runs.items()}
    for name, found in by_run.items():
        by_run[name] = {seed: item for seed, item in found.items() if item[1]["outcome"]["kind"] != check.excluding}
    seeds = sorted(set.intersection(*(set(found) for found in by_run.values())))
    return [_evidence(check, seed, {name: runs[seed] for name, runs in by_run.items()}) for seed in seeds]


def _evidence(check: Check, seed: int, runs: Mapping[str, tuple[str, Result]]) -> Evidence:
    bounds = quantity(check, {name: result for name, (_, result) in runs.items()})
    return Evidence(seed, bounds, tuple(path for path, _ in runs.values()))


def value_file(folder: Path, claim: Claim, check: Check, seed: int) -> Path:
    """The file of a study's value."""
    return folder / "studies" / claim.id / f"{check.name}-s{seed}.json"


def _of_study(claim: Claim, check: Check, folders: Sequence[Path]) -> Iterator[Evidence]:
    by_seed: dict[int, Evidence] = {}
    for folder in folders:
        for path in sorted((folder / "studies" / claim.id).glob(f"{check.name}-s*.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["made_by"] == made_by(check):
                value = float("nan") if content["value"] is None else content["value"]
                by_seed[content["seed"]] = Evidence(content["seed"], Bounds(value, value), (_label(path, folder),))
    yield from (by_seed[seed] for seed in sorted(by_seed))


def made_by(check: Check) -> dict[str, Any]:
    """What determines a study's value: its name, its arguments and the sha256 (12 digits) of its source files.

    Raises:
        UserError: if the study does not exist.
    """
    files = study.source_files(str(check.study))
    if not files:
        raise UserError(f"study: {check.study}: no such module in suite/studies")
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return {"study": check.study, "arguments": dict(check.arguments), "code": code}


def missing(check: Check, measured: Sequence[Evidence], count: int) -> list[int]:
    """The seeds to measure next, so that `count` seeds are measured; tuned runs use no seed of the tuning."""
    used = {evidence.seed for evidence in measured}
    start = TUNING_SEEDS.stop if check.runs else 0
    candidates = (seed for seed in range(start, start + count + len(used)) if seed not in used)
    return [seed for seed, _ in zip(candidates, range(max(0, count - len(used))), strict=False)]
