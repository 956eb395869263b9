"""Reads the published rows: numbers from papers, each with its place in the paper.

`results/published/<source>.yaml` contains one source with its tables and their rows. The ids of rows (`A1-12`) never
change; claims, presets and results refer to them. suite/schema/published.json defines the format.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from suite.contract import UserError
from suite.load import from_yaml


@dataclass(frozen=True)
class Row:
    """One number of a published table. A field that the source does not print is None."""

    id: str
    table: str
    task: str  # in the source's words
    metric: str
    value: float | str
    evidence: str  # the kind of place in which the number was read
    where_seen: str  # the place in the document `where`
    citation: str
    title: str  # of the table
    where: str  # the document that was read
    table_note: str | None = None
    arxiv: str | None = None
    suite_task: str | None = None  # the task of this suite whose runs can be compared with the row
    model: str | None = None
    dataset: str | None = None
    optimizer: str | None = None
    batch_size: int | str | None = None  # samples; text if the batch changes during the run
    hardware: str | None = None
    devices: int | None = None
    steps: int | str | None = None
    epochs: float | None = None
    time_seconds: float | None = None
    time_as_printed: str | None = None
    note: str | None = None
    details: Mapping[str, float | str | bool] = field(default_factory=dict)


@cache
def _texts() -> dict[str, str]:
    """Return the text of every file of published rows, by file name."""
    folder = resources.files("suite.results") / "published"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


@cache
def _parse(name: str) -> tuple[Row, ...]:
    document = from_yaml(_texts()[name])
    tables = {table["id"]: table for table in document["tables"]}

    def complete(row: dict) -> Row:
        table = tables[row["table"]]
        place = {"title": table["title"], "where": table["where"], "table_note": table.get("note")}
        return Row(**row, **place, **document["source"])

    return tuple(complete(row) for row in document["rows"])


def load_rows() -> tuple[Row, ...]:
    """Every published row, sorted by id."""
    return tuple(sorted((row for name in _texts() for row in _parse(name)), key=lambda row: row.id))


def find_rows(task: str, *, model: str | None = None) -> tuple[Row, ...]:
    """Find the rows that runs of a task can be compared with, sorted by id.

    Only files that mention the task are parsed.

    Args:
        task: name of a task.
        model: select the rows of one model, named as printed; None selects all.
    """
    rows = (row for name, text in _texts().items() if task in text for row in _parse(name))
    selected = (row for row in rows if row.suite_task == task and model in (None, row.model))
    return tuple(sorted(selected, key=lambda row: row.id))


def find_row(id: str) -> Row:
    """Find the row with an id.

    Raises:
        UserError: if there is no such row; names the nearest ids.
    """
    for name, text in _texts().items():
        if id in text:
            for candidate in _parse(name):
                if candidate.id == id:
                    return candidate
    near = difflib.get_close_matches(id.upper(), [candidate.id for candidate in load_rows()], n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else "ids look like A1-12, table and row"
    raise UserError(f"no published row has the id {id!r}; {hint}. All rows are in results/published/")


def compare_rows(task: str, rows: Sequence[Row], *, stand_in: bool, batch_size: int | None = None) -> str:
    """A sentence on which numbers of a run may be compared with published rows.

    Args:
        task: the run's task.
        rows: the published rows that fit the task.
        stand_in: whether the run's model or data is smaller than the papers'.
        batch_size: the run's global batch size; None does not check it.
    """
    if not rows:
        return f"No published row is known for {task}; compare these runs only with each other."
    if stand_in:
        return (
            f"This run is a stand-in. Compare only the pattern with {_named(rows)} (which method leads, and by what "
            "ratio), never accuracy, steps or seconds."
        )
    equal = [row for row in rows if batch_size in (None, row.batch_size)]
    if not equal:
        return f"No published row has batch {batch_size:,}; compare only the pattern with {_named(rows)}."
    return (
        f"Accuracy and steps may be compared with {_named(equal)} if model, data and target are also equal; "
        "seconds only on the same hardware and number of devices."
    )


def _named(rows: Sequence[Row], most: int = 4) -> str:
    ids = [row.id for row in rows]
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more rows" if len(ids) > most else "")
