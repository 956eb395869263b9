"""Reads the published rows: numbers from papers, each with its place in the paper.

`results/published/<source>.yaml` contains one source with its tables and their rows. The ids of rows (`A1-12`) never
change; claims, presets and results refer to them. suite/schema/published.json defines the format.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

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


YEAR = re.compile(r"(?<![\d.@])((?:19|20)\d\d)(?![\d.])")  # not part of an arXiv number, a commit or a longer number
ARXIV = re.compile(r"(\d\d)\d\d\.\d+")  # the year and month of the first version, then a number


def find_year(row: Row) -> int | None:
    """Return the year of a row's publication: its own date, else that of its source, else of its preprint.

    None: neither the row nor its source has one.
    """
    for text in (str(row.details.get("date", "")), row.citation, row.where_seen):
        if match := YEAR.search(text):
            return int(match[1])
    preprint = ARXIV.match(row.arxiv or "")
    return 2000 + int(preprint[1]) if preprint else None


@cache
def _texts() -> dict[str, str]:
    """Return the text of every file of published rows, by file name."""
    folder = resources.files("suite.results") / "published"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


@cache
def _parse(name: str) -> tuple[Row, ...]:
    return parse_rows(_texts()[name], f"results/published/{name}")


def parse_rows(text: str, name: str) -> tuple[Row, ...]:
    """Return the rows of a source.

    Args:
        text: content of the file.
        name: of the file, for messages.

    Raises:
        UserError: if it is not YAML, two tables or rows have the same id, a table has no rows or is missing, or a row
            has other fields than `Row`.
    """
    import yaml

    try:
        document = from_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: {error}") from error
    tables = {table["id"]: table for table in document["tables"]}
    rows = [_complete(row, tables, document["source"], name) for row in document["rows"]]
    for kind, ids in (("table", [table["id"] for table in document["tables"]]), ("row", [row.id for row in rows])):
        if doubled := next((id for number, id in enumerate(ids) if id in ids[:number]), None):
            lines = enumerate(text.split("\n"), 1)
            places = (number for number, line in lines if re.search(rf"\bid: {re.escape(doubled)}\b", line))
            raise UserError(f"{name}: two {kind}s have the id {doubled}, in lines {', '.join(map(str, places))}")
    if empty := tables.keys() - {row.table for row in rows}:
        raise UserError(f"{name}: table {min(empty)} has no rows; remove it, or restore them")
    return tuple(rows)


def _complete(row: dict, tables: Mapping[str, dict], source: Mapping[str, Any], name: str) -> Row:
    """Return a row with the fields of its table and source."""
    if (table := tables.get(row.get("table", ""))) is None:
        raise UserError(f"{name}: row {row.get('id')}: the file has no table {row.get('table')}")
    place = {"title": table["title"], "where": table["where"], "table_note": table.get("note")}
    try:
        return Row(**row, **place, **source)
    except TypeError as error:  # it names the field
        raise UserError(f"{name}: row {row.get('id')}: {str(error).removeprefix('Row.__init__() ')}") from error


@cache
def load_rows() -> tuple[Row, ...]:
    """Every published row, sorted by id.

    Raises:
        UserError: if a file cannot be read, or two have a row of the same id.
    """
    first: dict[str, str] = {}
    for name in _texts():
        for row in _parse(name):
            if (other := first.setdefault(row.id, name)) != name:
                raise UserError(f"results/published/{name}: row {row.id} is in {other}, too; choose another id")
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
