"""What `suite plan` says of a baseline, which has neither a network nor steps to count."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import record
from suite.contract import Task


def plan(config: Mapping[str, Any], task: Task, absent: Sequence[str]) -> dict[str, Any]:
    """What would be fitted; `absent` says what is missing of the data."""
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
    """A result in `folder` of the same baseline and task, and its training seconds; None where there is none."""
    for path in sorted(folder.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        its = result["spec"]["config"]
        same = all(its.get(name) == config[name] for name in ("task", "baseline", "scale"))
        if same and result["train_seconds"] is not None:
            return {"result": str(path), "train_seconds": result["train_seconds"]}
    return None


def lines(found: Mapping[str, Any]) -> list[str]:
    """The plan for people."""
    config, near = found["config"], found["measured"]
    time = "unknown: no result of this baseline on the same task and data lies under runs/"
    if near:
        time = f"{near['train_seconds']:,.0f} s of training, as in {near['result']}"
    return [
        " · ".join([found["task"], config["scale"], found["data"], record.method(config)]),
        "fitted      once and whole, on one CPU: no parameters, steps, batches or devices to count",
        *([f"data        {found['note']}"] if found["note"] else []),
        f"targets     {', '.join(found['targets']) or 'none'}",
        f"time        {time}",
        *(f"missing: {what}" for what in found["missing"]),
    ]
