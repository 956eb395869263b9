"""Accepted counts: a YAML file with one entry for each counted run or import."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from suite import disk, orphan
from suite.contract import UserError
from suite.load import from_yaml
from suite.record import environment

HEAD = """# Exact counts of short runs, as a reviewer has accepted them; docs/regression.md explains them.
# `suite counters` compares them with the working tree, and `suite counters --accept` writes them again.
"""
PACKAGES = ("torch", "jax", "numpy")
KINDS = ("run", "targets", "import")  # what an entry can be: the first steps of a run, its steps to targets, an import
PRECISIONS = ("float32", "float64")
# Rounding differs between machines and orders of sums. In a network of ReLUs the difference grows about tenfold a step
# (see suite/launch/replay.py).
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
FIRST, GROWTH = 100, 10  # epsilons at the first step, growth per step
WORST = 0.5  # of a loss; a larger difference is never called rounding


@dataclass(frozen=True)
class Change:
    """Differences between accepted and present counts of one entry.

    Attributes:
        place: dotted key of the count, or `losses`.
        before: the accepted value; None if there is none.
        after: the present value; None if there is none.
    """

    place: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if isinstance(self.before, int) and isinstance(self.after, int) and self.before:
            return f"{self.place}: {self.before:,} -> {self.after:,} ({self.after / self.before - 1:+.2%})"
        return f"{self.place}: {_shown(self.before)} -> {_shown(self.after)}"


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


# ------------------------------------------------------------------------------------------------------------ the file
def read_counters(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a file of counts.

    Raises:
        UserError: if it is no such file.
    """
    import yaml

    try:
        entries = from_yaml(path.read_text(encoding="utf-8"), bounded=True)["entries"]
        names = [entry["name"] for entry in entries]
        kinds = [sum(kind in entry for kind in KINDS) for entry in entries]
    except (OSError, UnicodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{path}: expected entries: [{{name: mine, run: +task=resnet50}}]: {error}") from error
    if len(set(names)) < len(names) or set(kinds) != {1}:
        raise UserError(f"{path}: each entry needs its own name, and one of {', '.join(KINDS)}")
    return entries


def write_counters(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of counts: a line for each count, so that a difference is easy to read."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a list of losses in as few lines as possible."""

    def losses(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
        flow = all(isinstance(value, float) for value in values)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)

    Dumper.add_representer(list, losses)
    content = {"made_with": made_with(), "entries": [dict(entry) for entry in entries]}
    disk.replace_file(path, HEAD + yaml.dump(content, Dumper=Dumper, sort_keys=False, width=120))


def made_with() -> dict[str, str]:
    """Return the versions on which counts depend."""
    return {"python": platform.python_version(), **environment.read_versions(PACKAGES)}


def other_versions(path: Path) -> list[str]:
    """Return the packages whose versions differ from those of the accepted counts, with both versions."""
    import yaml

    try:
        before = yaml.safe_load(path.read_text(encoding="utf-8")).get("made_with") or {}
    except (OSError, UnicodeError, yaml.YAMLError, AttributeError):
        return []  # `read_counters` says what is wrong
    now = made_with()
    return [f"{name} {before[name]} -> {now.get(name, 'none')}" for name in before if before[name] != now.get(name)]


# ------------------------------------------------------------------------------------------------------------ counting
def count_all(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Count a run, the steps to its targets, or an import again, each in separate processes.

    Returns:
        The entry with present counts and, of a run, losses in both precisions.

    Raises:
        UserError: if a process failed, with the end of its output.
    """
    head = {key: entry[key] for key in ("name", *KINDS) if key in entry}
    if "import" in entry:
        return {**head, "counts": _process(entry, ["suite.counters.imports", str(entry["import"])])}
    if "targets" in entry:
        return {**head, "counts": _process(entry, ["suite.counters.steps", *shlex.split(str(entry["targets"]))])}
    words = ["suite.counters.process", *shlex.split(str(entry["run"]))]
    first, second = (_process(entry, [*words, f"precision={precision}"]) for precision in PRECISIONS)
    losses = dict(zip(PRECISIONS, (first["losses"], second["losses"]), strict=True))
    return {**head, "counts": first["counts"], "losses": losses}


def _process(entry: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the JSON that a module prints."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        env=variables,
        preexec_fn=partial(orphan.bind_to_parent, os.getpid()),
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-6:])
        raise UserError(f"{entry['name']}: counting failed with exit code {done.returncode}:\n{tail}")
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------------------------ changes
def list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """List the counts in which two entries differ."""
    return list(_changes(before.get("counts"), after.get("counts"), ""))


def _changes(before: Any, after: Any, place: str) -> Iterator[Change]:
    if isinstance(before, Mapping) or isinstance(after, Mapping):
        earlier, later = (value if isinstance(value, Mapping) else {} for value in (before, after))
        for key in dict.fromkeys([*earlier, *later]):
            yield from _changes(earlier.get(key), later.get(key), f"{place}.{key}" if place else str(key))
    elif before != after:
        yield Change(place, before, after)


def judge_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return what kind of change the losses show; None if none has changed.

    In double precision rounding is tiny in the first steps, so that a difference means other mathematics.

    Returns:
        `rounding`: both precisions agree up to rounding. `algorithm`: the losses in double precision differ.
        `bug?`: those in double precision agree, and those in single precision differ by more than rounding.
    """
    earlier, later = before.get("losses"), after.get("losses")
    if not earlier or not later or earlier == later:
        return None
    if not _close(earlier["float64"], later["float64"], EPSILON["float64"]):
        return "algorithm"
    return "rounding" if _close(earlier["float32"], later["float32"], EPSILON["float32"]) else "bug?"


def _close(before: Sequence[float], after: Sequence[float], epsilon: float) -> bool:
    """Return whether losses agree up to rounding that grows from step to step."""
    bounds = (FIRST * epsilon * GROWTH**step for step in range(len(before)))
    pairs = zip(before, after, bounds, strict=False)
    return len(before) == len(after) and all(
        repr(b) == repr(a) or abs(b - a) <= min(bound, WORST) * abs(b) for b, a, bound in pairs
    )  # repr: a loss that is not a number equals itself


def compare_counters(
    path: Path, names: Sequence[str], report: Callable[[str], None]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Accepted and present entries, one pair after the other; all, or those that are named.

    Raises:
        UserError: if there is no entry of a name, or counting fails.
    """
    entries = read_counters(path)
    known = [entry["name"] for entry in entries]
    for name in names:
        if name not in known:
            raise UserError(f"{name}: no such entry; choose one of {', '.join(known)}")
    for entry in entries:
        if not names or entry["name"] in names:
            report(f"counting {entry['name']}")
            yield entry, count_all(entry)
