"""Metrics as every reader of a run expects them, whatever a task's `score` returns."""

import math
from collections.abc import Mapping
from typing import Any

from suite.contract import Task, UserError


def read_metrics(task: Task, scored: Mapping[str, Any]) -> dict[str, float | None]:
    """Return metrics as Python floats; one that is not finite is undefined (None), and meets no target.

    Raises:
        UserError: the metric of a target is missing, or one is no number.
    """
    if absent := [target.metric for target in task.targets if target.metric not in scored]:
        raise UserError(f"task={task.name}: score returns {', '.join(scored)}, but a target needs {absent[0]}")
    metrics: dict[str, float | None] = {}
    for name, value in scored.items():
        try:
            number = math.nan if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"task={task.name}: score returns {name}={value!r}, which is no number") from error
        metrics[name] = number if math.isfinite(number) else None
    return metrics
