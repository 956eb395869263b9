"""Which optimizer reached what in how many steps, from the committed results.

python ladders.py [TABLE]: a row for each task, data and optimizer, by seed and backend: steps to the last rung of the
ladder, or `-` where it was missed.
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


def laptop(results: Iterable[Any]) -> list[Any]:
    """Those of a tuned recipe on the laptop's ladder."""
    return [r for r in results if r["spec"]["scale"] == "laptop" and r["spec"]["optimizer"] and r["tuning"]["trials"]]


def table(results: Iterable[Any]) -> str:
    """The table as CSV; of several results with the same spec the last one by name counts."""
    groups: dict[Any, dict[tuple[str, int], str]] = {}
    for result in laptop(results):
        spec, last = result["spec"], result["targets"][-1]
        rung = f"{last['metric']}{'>=' if last['higher_is_better'] else '<='}{last['value']:g}"
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
    Path(sys.argv[1] if len(sys.argv) > 1 else "results/ladders.csv").write_text(table(committed()))
