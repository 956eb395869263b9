"""The leaderboard's standard runs: tunes and runs what `results/grid.yaml` lists and is not committed yet.

`make grid` may be interrupted at any time; the same command continues. Each tuning and each run is a process of its
own. Tuned recipes are written to conf/recipe, results to results/runs.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from suite import orphan, output, signals
from suite.entries.intake import parse_form
from suite.load import from_yaml
from suite.record.facts import Spec

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results" / "runs"
Key = tuple[str, str, str, str, int, str, int]  # task, data, optimizer, comm, world, backend, seed


@dataclass(frozen=True)
class Cell:
    """One optimizer on one task in one communication mode: its tuning, and its reported runs.

    Attributes:
        task, data, optimizer: names.
        seeds: reported.
        trials: of the tuning.
        max_steps: of the tuning.
        overrides: of the tuning.
        eval_every: steps between evaluations; None: the task's.
        comm: communication mode, with its overrides.
        world: number of ranks.
    """

    task: str
    data: str
    optimizer: str
    seeds: tuple[int, ...]
    trials: int
    max_steps: int = 0
    overrides: tuple[str, ...] = ()
    eval_every: int | None = None
    comm: str = "float32"
    world: int = 1

    @property
    def name(self) -> str:
        """Task, data and optimizer; with several ranks, also the communication mode."""
        parts = [self.task, self.data, self.optimizer, *([self.mode] if self.world > 1 else [])]
        return "/".join(parts)

    @property
    def mode(self) -> str:
        """The name of the communication mode."""
        return self.comm.split()[0]

    @property
    def recipe(self) -> Path:
        """The file of the tuned recipe."""
        return ROOT / "conf" / "recipe" / f"{self.task}-{self.optimizer}-laptop.yaml"

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What `suite tune` wrote about this data into the recipe; empty if it has not."""
        if not self.recipe.exists():
            return {}
        return from_yaml(self.recipe.read_text(encoding="utf-8")).get("tuned", {}).get(self.data, {})

    @property
    def tuned(self) -> bool:
        """Whether the recipe was tuned on this data with the grid's number of trials and overrides."""
        typed = shlex.split(self.evidence.get("command", ""))
        return self.evidence.get("trials", 0) >= self.trials and all(word in typed for word in self.overrides)

    @property
    def words(self) -> list[str]:
        """The overrides that tuning and reported runs share."""
        cadence = [f"eval_every={self.eval_every}"] if self.eval_every else []
        return [f"+task={self.task}", f"optimizer={self.optimizer}", f"task.data={self.data}", "threads=1", *cadence]

    @property
    def ranks(self) -> list[str]:
        """The overrides of a reported run on several ranks."""
        return [f"world={self.world}", *f"comm={self.comm}".split()] if self.world > 1 else []

    def key(self, backend: str, seed: int) -> Key:
        """What identifies a reported run."""
        return self.task, self.data, self.optimizer, self.mode, self.world, backend, seed


def cells(grid: Mapping[str, Any]) -> Iterator[Cell]:
    """Every cell of the grid, in the file's order."""
    trials, seeds = grid["trials"], grid["seeds"]
    for entry in grid["optimizers"]:
        common = entry["task"], entry["data"]
        own = tuple(entry.get("seeds", seeds))
        for optimizer in entry["optimizers"]:
            extra = *entry.get("overrides", ()), *entry.get("settings", {}).get(optimizer, ())
            yield Cell(*common, optimizer, own, trials, entry["max_steps"], extra, entry.get("eval_every"))
    for entry in grid["modes"]:
        for comm in entry["comm"]:
            common = entry["task"], entry["data"], entry["optimizer"]
            yield Cell(*common, tuple(entry["seeds"]), trials, comm=comm, world=entry["world"])


def committed(paths: Iterable[Path], trials: int) -> dict[Key, list[Mapping[str, Any]]]:
    """The settings of the optimizer in each reported run of a tuned recipe, among result files.

    Args:
        paths: of result files.
        trials: that a recipe must have.
    """
    made: dict[Key, list[Mapping[str, Any]]] = {}
    for path in paths:
        result = parse_form(path.read_text(encoding="utf-8"))
        if result.tuning.trials >= trials and result.spec.optimizer:
            made.setdefault(_key(result.spec), []).append(result.spec.config["optimizer"])
    return made


def missing(
    cell: Cell, made: Mapping[Key, Sequence[Mapping[str, Any]]], backends: Sequence[str]
) -> list[tuple[str, int]]:
    """The backends and seeds without a committed run of the cell's present recipe.

    Args:
        cell: of the grid.
        made: what is committed.
        backends: reported.
    """
    recipe = cell.evidence.get("values", {}).get("optimizer", {}).items() if cell.tuned else None

    def absent(backend: str, seed: int) -> bool:
        runs = made.get(cell.key(backend, seed), [])
        return recipe is None or not any(recipe <= settings.items() for settings in runs)

    return [(backend, seed) for seed in cell.seeds for backend in backends if absent(backend, seed)]


def _key(spec: Spec) -> Key:
    assert spec.optimizer and spec.comm and spec.world and spec.backend, "a baseline has no key"
    data = spec.config["task"].get("data", "")
    return spec.task, data, spec.optimizer, spec.comm, spec.world, spec.backend, spec.seed


def tune(cell: Cell) -> bool:
    """Tune a cell; return whether a recipe was written. An optimizer that misses every target is reported as well."""
    _suite("tune", *cell.words, f"max_steps={cell.max_steps}", f"trials={cell.trials}", "--misses", *cell.overrides)
    return cell.tuned


def run(cell: Cell, backend: str, seed: int) -> None:
    """Make one reported run and keep its result; a run that failed leaves no file."""
    code = _suite(*cell.words, *cell.ranks, f"backend={backend}", f"seed={seed}", "track=none", "save=none")
    if code not in (0, 1):
        return
    for path in sorted((ROOT / "runs" / cell.task).glob("*/result.json")):
        result = parse_form(path.read_text(encoding="utf-8"))
        if _key(result.spec) == cell.key(backend, seed) and result.tuning.trials >= cell.trials:
            (RUNS / cell.task).mkdir(parents=True, exist_ok=True)
            digits = path.parent.name.partition(".")[0]
            mode = f"-{cell.mode}" if cell.mode != "float32" else ""
            name = f"{cell.data}-{cell.optimizer}{mode}-{backend}-s{seed}-{digits}.json"
            (RUNS / cell.task / name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def _suite(*words: str) -> int:
    """Run a command of the suite; an interruption ends the grid."""
    print("suite", *words, flush=True)
    bind = partial(orphan.bind_to_parent, os.getpid())
    code = subprocess.run([sys.executable, "-m", "suite", *words], cwd=ROOT, preexec_fn=bind).returncode
    if code in signals.CODES.values():
        sys.exit(code)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune and run what is missing; return 0, or 1 if a cell could not be tuned."""
    parser = argparse.ArgumentParser(prog="make grid", description=__doc__)
    parser.add_argument(
        "cells", nargs="*", metavar="TASK/DATA/OPTIMIZER", help="only these, or TASK, or TASK/DATA/OPTIMIZER/MODE"
    )
    parser.add_argument("--list", action="store_true", help="print what is missing, and run nothing")
    parser.add_argument("--tune", action="store_true", help="only tune; commit the recipes before the reported runs")
    chosen = parser.parse_args(arguments)

    grid = from_yaml((ROOT / "results" / "grid.yaml").read_text(encoding="utf-8"))
    made = committed(RUNS.rglob("*.json"), grid["trials"])
    code = 0
    for cell in cells(grid):
        lacking = missing(cell, made, grid["backends"])
        if not lacking or (chosen.cells and not any(cell.name.startswith(name) for name in chosen.cells)):
            continue
        if chosen.list:
            tuning = "" if cell.tuned else "tuning, "
            print(f"{cell.name}: {tuning}{len(lacking)} runs missing")
            continue
        if not cell.tuned:
            if not tune(cell):
                code = 1
                continue
            lacking = missing(cell, made, grid["backends"])
        for backend, seed in [] if chosen.tune else lacking:
            run(cell, backend, seed)
    return code


if __name__ == "__main__":
    with output.drop_unwritable():
        code = main()
    sys.exit(code)
