"""`suite plan` for a baseline, which has no network and makes no steps."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.contract import Task
from suite.record import record


def plan(config: Mapping[str, Any], task: Task, absent: Sequence[str]) -> dict[str, Any]:
    """Describe the fit of a baseline; `absent` lists the data that is missing."""
    return {
        "task": task.name,
        "data": task.data.name if absent else str(task.data),
        "note": task.data.note,
        "baseline": config["baseline"]["name"],
        "parameters": None,
        "steps": None,
        "targets": [str(target) for target in task.targets],
        "measured": measured(config),
        "missing": list(absent),
        "hash": record.config_hash(config),
        "config": dict(config),
    }


def measured(config: Mapping[str, Any], folder: Path = Path("runs")) -> dict[str, Any] | None:
    """A result of the same baseline and task in `folder`, with its training seconds; None if there is none."""
    for path in sorted(folder.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        result_config = result["spec"]["config"]
        same = all(result_config.get(name) == config[name] for name in ("task", "baseline", "scale"))
        if same and result["train_seconds"] is not None:
            return {"result": str(path), "train_seconds": result["train_seconds"]}
    return None


def lines(planned: Mapping[str, Any]) -> list[str]:
    """The plan as lines of text."""
    config, near = planned["config"], planned["measured"]
    time = "unknown: runs/ has no result of this baseline on the same task and data"
    if near:
        time = f"{near['train_seconds']:,.0f} s of training, as in {near['result']}"
    return [
        " · ".join([planned["task"], config["scale"], planned["data"], record.method(config)]),
        "fitted      once, on one CPU; a baseline has no parameters, steps, batches or devices",
        *([f"data        {planned['note']}"] if planned["note"] else []),
        f"targets     {', '.join(planned['targets']) or 'none'}",
        f"time        {time}",
        *(f"missing: {reason}" for reason in planned["missing"]),
    ]
