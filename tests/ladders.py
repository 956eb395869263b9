"""Which optimizer, and which communication mode, reached what in how many steps, from the committed results.

python ladders.py [FOLDER] writes two tables there. ladders.csv: a row for each task, data and optimizer on one device,
by seed and backend: steps to the last rung of the ladder, or `-` where it was missed. modes.csv: the same for each mode
on several devices, with the bytes that rank 0 sent in a step, everything counted.
"""

import csv
import json
import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent.parent / "results" / "runs"
BACKENDS = ("torch", "jax")


def laptop(results: Iterable[Any], *, several: bool = False) -> list[Any]:
    """Those of a tuned recipe on the laptop's ladder, on one device or on several."""
    tuned = [r for r in results if r["spec"]["scale"] == "laptop" and r["spec"]["optimizer"] and r["tuning"]["trials"]]
    return [result for result in tuned if (result["spec"]["world"] > 1) is several]


def rung_of(result: Any) -> str:
    """The last rung of a result's ladder."""
    last = result["targets"][-1]
    return f"{last['metric']}{'>=' if last['higher_is_better'] else '<='}{last['value']:g}"


def modes(results: Iterable[Any]) -> str:
    """The table of modes as CSV."""
    groups: dict[Any, dict[tuple[str, int], Any]] = {}
    for result in laptop(results, several=True):
        spec = result["spec"]
        source = spec["config"]["task"]["data"]
        key = spec["task"], source, rung_of(result), spec["world"], spec["optimizer"], spec["comm"]
        groups.setdefault(key, {})[spec["backend"], spec["seed"]] = result
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"{backend}_{what}" for backend in BACKENDS for what in ("steps", "bytes_a_step")]
    writer.writerow(["task", "data", "last_rung", "world", "optimizer", "comm", *columns])
    for key, found in sorted(groups.items()):
        cells = []
        for backend in BACKENDS:
            ran = [found[at] for at in sorted(found) if at[0] == backend]
            last = [result["targets"][-1] for result in ran]
            cells.append(" / ".join(str(target["step"]) if target["reached"] else "-" for target in last))
            cells.append(" / ".join(f"{result['bytes']['sent'] / result['steps']:.0f}" for result in ran))
        writer.writerow([*key, *cells])
    return file.getvalue()


def table(results: Iterable[Any]) -> str:
    """The table of optimizers as CSV; of several results with the same spec the last one by name counts."""
    groups: dict[Any, dict[tuple[str, int], str]] = {}
    for result in laptop(results):
        spec, last, rung = result["spec"], result["targets"][-1], rung_of(result)
        source = spec["config"]["task"]["data"]
        key = spec["task"], source, spec["optimizer"], rung, result["tuning"]["source"], result["tuning"]["trials"]
        steps = str(last["step"]) if last["reached"] else "-"
        groups.setdefault(key, {})[spec["backend"], spec["seed"]] = steps
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["task", "data", "optimizer", "last_rung", "recipe", "trials", *(f"{b}_steps" for b in BACKENDS)])
    for key, steps in sorted(groups.items(), key=str):
        seeds = [[steps[at] for at in sorted(steps) if at[0] == backend] for backend in BACKENDS]
        writer.writerow([*key, *(" / ".join(each) for each in seeds)])
    return file.getvalue()


def committed() -> list[Any]:
    """Every committed result, by name."""
    return [json.loads(path.read_text()) for path in sorted(RUNS.rglob("*.json"))]


if __name__ == "__main__":
    folder, found = Path(sys.argv[1] if len(sys.argv) > 1 else "results"), committed()
    (folder / "ladders.csv").write_text(table(found))
    (folder / "modes.csv").write_text(modes(found))
