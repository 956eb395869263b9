"""Chooses published rows to compare a run with, by task, metric, model and method.

The names that papers use are listed in `results/matching.yaml`; names are never matched by a part of their text.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from suite.load import from_yaml
from suite.published import Row
from suite.settings.run import AnyRun, Run

MOST_ROWS = 6
ORDER = "one a paper and method; own method first, then the nearest"  # nearest in model, batch size and epochs
TARGET = "target"  # the task of a row that sets a goal and reports no result


@cache
def _table() -> dict[str, Any]:
    return from_yaml((resources.files("suite.results") / "matching.yaml").read_text(encoding="utf-8"))


def select_comparable(rows: Iterable[Row], task: str) -> list[Row]:
    """Return the rows that report the task's metric for one of its models, in their order."""
    protocol = _table()["tasks"].get(task)
    if protocol is None:
        return []
    models = {name for names in protocol["models"].values() for name in names}
    return [
        row
        for row in rows
        if row.suite_task == task
        and row.task != TARGET
        and row.metric in protocol["metrics"]
        and row.model in models
        and isinstance(row.value, int | float)
    ]


def list_methods(name: str) -> frozenset[str]:
    """List the papers' names of an optimizer or baseline of this suite."""
    return frozenset(_table()["methods"].get(name, ()))


def choose_rows(rows: Sequence[Row], run: AnyRun, *, samples: int) -> list[Row]:
    """Choose the published rows that are most similar to a run: one for each paper and method, at most `MOST_ROWS`.

    Args:
        rows: published rows.
        run: the run.
        samples: number of samples in the training split.

    Returns:
        The rows, in the order that `ORDER` describes.
    """
    task = run.task
    candidates = select_comparable(rows, task.name)
    if not candidates:
        return []
    protocol = _table()["tasks"][task.name]
    variant = protocol["models"].get(task.variant, ())
    trained = isinstance(run, Run)
    own_names = list_methods(run.optimizer.name if trained else run.baseline.name)
    batch_size = task.batch_size if trained else None
    epochs = task.batch_size * run.max_steps / samples if trained and samples else None

    def distance(row: Row) -> tuple[Any, ...]:
        sizes = _ratio(row.batch_size, batch_size), _ratio(row.epochs, epochs)
        printed = (row.hardware, row.devices, row.time_seconds)
        metric = protocol["metrics"].index(row.metric)
        return row.optimizer not in own_names, row.model not in variant, *sizes, metric, printed.count(None), row.id

    nearest: dict[tuple[str, str | None], Row] = {}
    for row in sorted(candidates, key=distance):
        nearest.setdefault((row.citation, row.optimizer), row)
    return list(nearest.values())[:MOST_ROWS]


def _ratio(printed: float | str | None, planned: float | None) -> float:
    """|log| of the ratio of a printed size to the run's; infinite if none is printed, 0 if the run has none."""
    if planned is None:
        return 0.0
    return abs(math.log(printed / planned)) if isinstance(printed, int | float) else math.inf
