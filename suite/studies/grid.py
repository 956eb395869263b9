"""The leaderboard's standard runs: tunes and runs what `results/grid.yaml` lists and is not committed yet.

`make grid` may be interrupted at any time; the same command continues. Each tuning and each run is a process of its
own. Tuned recipes are written to conf/recipe, results to results/runs.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results" / "runs"


@dataclass(frozen=True)
class Cell:
    """One optimizer on one task: its tuning, and its reported runs."""

    task: str
    optimizer: str
    data: str
    max_steps: int
    trials: int
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Task, data and optimizer."""
        return f"{self.task}/{self.data}/{self.optimizer}"

    @property
    def recipe(self) -> Path:
        """The file of the tuned recipe."""
        return ROOT / "conf" / "recipe" / f"{self.task}-{self.optimizer}-laptop.yaml"

    @property
    def tuned(self) -> bool:
        """Whether the recipe has as many trials on this data as the grid asks for."""
        if not self.recipe.exists():
            return False
        import yaml

        evidence = yaml.safe_load(self.recipe.read_text(encoding="utf-8")).get("tuned", {})
        return evidence.get(self.data, {}).get("trials", 0) >= self.trials

    @property
    def words(self) -> list[str]:
        """The overrides that tuning and reported runs share."""
        return [f"+task={self.task}", f"optimizer={self.optimizer}", f"task.data={self.data}", "threads=1"]

    def result(self, backend: str, seed: int) -> Path | None:
        """The committed result of a reported run; None if there is none."""
        name = f"{self.data}-{self.optimizer}-{backend}-s{seed}-*.json"
        return next(iter(sorted((RUNS / self.task).glob(name))), None)


def cells(grid: dict[str, Any]) -> Iterator[Cell]:
    """Every cell of the grid, in the file's order."""
    for entry in grid["entries"]:
        for optimizer in entry["optimizers"]:
            extra = tuple(entry.get("overrides", ()))
            yield Cell(entry["task"], optimizer, entry["data"], entry["max_steps"], grid["trials"], extra)


def tune(cell: Cell) -> bool:
    """Tune a cell; return whether a recipe was written. An optimizer that misses every target is reported as well."""
    _suite("tune", *cell.words, f"max_steps={cell.max_steps}", f"trials={cell.trials}", "--misses", *cell.overrides)
    return cell.tuned


def run(cell: Cell, backend: str, seed: int) -> None:
    """Make one reported run and keep its result; a run that failed leaves no file."""
    code = _suite(*cell.words, f"backend={backend}", f"seed={seed}", "track=none", "save=none")
    if code not in (0, 1):
        return
    for path in sorted((ROOT / "runs" / cell.task).glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        spec = result["spec"]
        same = (spec["optimizer"], spec["backend"], spec["seed"]) == (cell.optimizer, backend, seed)
        if same and spec["config"]["task"]["data"] == cell.data and result["tuning"]["trials"] >= cell.trials:
            (RUNS / cell.task).mkdir(parents=True, exist_ok=True)
            digits = path.parent.name.partition(".")[0]
            name = f"{cell.data}-{cell.optimizer}-{backend}-s{seed}-{digits}.json"
            (RUNS / cell.task / name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def _suite(*words: str) -> int:
    """Run a command of the suite; an interruption ends the grid."""
    print("suite", *words, flush=True)
    code = subprocess.run([sys.executable, "-m", "suite", *words], cwd=ROOT).returncode
    if code in (130, 143):
        sys.exit(code)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune and run what is missing; return 0, or 1 if a cell could not be tuned."""
    parser = argparse.ArgumentParser(prog="make grid", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="TASK/DATA/OPTIMIZER", help="only these, or TASK or TASK/DATA")
    parser.add_argument("--list", action="store_true", help="print what is missing, and run nothing")
    parser.add_argument("--tune", action="store_true", help="only tune; commit the recipes before the reported runs")
    chosen = parser.parse_args(arguments)
    import yaml

    grid = yaml.safe_load((ROOT / "results" / "grid.yaml").read_text(encoding="utf-8"))
    code = 0
    for cell in cells(grid):
        missing = [(b, s) for b in grid["backends"] for s in grid["seeds"] if cell.result(b, s) is None]
        if not missing or (chosen.cells and not any(cell.name.startswith(name) for name in chosen.cells)):
            continue
        if chosen.list:
            tuning = "" if cell.tuned else "tuning, "
            print(f"{cell.name}: {tuning}{len(missing)} runs missing")
            continue
        if not cell.tuned and not tune(cell):
            code = 1
            continue
        for backend, seed in [] if chosen.tune else missing:
            run(cell, backend, seed)
    return code


if __name__ == "__main__":
    sys.exit(main())
