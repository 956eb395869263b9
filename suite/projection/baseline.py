"""`suite plan` for a baseline, which has no network and makes no steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.contract import Task
from suite.entries.intake import find_results
from suite.record import record
from suite.settings.effects import hash_run
from suite.settings.run import BaselineRun


def plan_baseline(run: BaselineRun, task: Task, absent: Sequence[str]) -> dict[str, Any]:
    """Describe the fit of a baseline; `absent` lists the data that is missing."""
    return {
        "task": task.name,
        "data": task.data.name if absent else str(task.data),
        "note": task.data.note,
        "baseline": run.baseline.name,
        "parameters": None,
        "steps": None,
        "targets": [str(target) for target in task.targets],
        "measured": find_measured(run),
        "missing": list(absent),
        "hash": hash_run(run),
        "config": run.plain(),
    }


def find_measured(run: BaselineRun, folder: Path = Path("runs")) -> dict[str, Any] | None:
    """A result of the same baseline and task in `folder`, with its training seconds; None if there is none."""
    work = run.task, run.baseline, run.scale
    for path, result in find_results(folder):
        other = record.load_run(result)
        same = isinstance(other, BaselineRun) and (other.task, other.baseline, other.scale) == work
        if same and result.train_seconds is not None and not record.is_crowded(result):
            return {"result": str(path), "train_seconds": result.train_seconds}
    return None


def format_plan(planned: Mapping[str, Any], run: BaselineRun) -> list[str]:
    """Return the plan as lines of text."""
    near = planned["measured"]
    time = "unknown: runs/ has no result of this baseline on the same task and data, on an idle machine"
    if near:
        time = f"{near['train_seconds']:,.0f} s of training, as in {near['result']}"
    return [
        " · ".join([planned["task"], run.scale, planned["data"], run.method]),
        "fitted      once, on one CPU; a baseline has no parameters, steps, batches or devices",
        *([f"data        {planned['note']}"] if planned["note"] else []),
        f"targets     {', '.join(planned['targets']) or 'none'}",
        f"time        {time}",
        *(f"missing: {reason}" for reason in planned["missing"]),
    ]
