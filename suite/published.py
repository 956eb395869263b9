"""Rows printed in papers, each with the place where it was read.

`results/published/<source>.yaml` holds one paper or source: what it is, its tables and their rows. Rows keep their
ids for good (`A1-12`); claims, presets and results refer to them. suite/schema/published.json is the format.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from suite.contract import UserError


@dataclass(frozen=True)
class Row:
    """One number of one published table. A field that is not printed is None."""

    id: str
    table: str
    task: str  # in the source's words
    metric: str
    value: float | str
    evidence: str  # what kind of place the number was read in
    where_seen: str  # the place within `where`
    citation: str
    title: str  # of the table
    where: str  # the document that was read
    table_note: str | None = None
    arxiv: str | None = None
    suite_task: str | None = None  # the task of this suite whose runs may stand beside the row
    model: str | None = None
    dataset: str | None = None
    optimizer: str | None = None
    batch_size: int | str | None = None  # samples; text where the batch changes during the run
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
    """The text of every file of published rows, by file name."""
    folder = resources.files("suite.results") / "published"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


@cache
def _parse(name: str) -> tuple[Row, ...]:
    import yaml

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    document = yaml.load(_texts()[name], Loader=loader)
    tables = {table["id"]: table for table in document["tables"]}

    def complete(row: dict) -> Row:
        table = tables[row["table"]]
        place = {"title": table["title"], "where": table["where"], "table_note": table.get("note")}
        return Row(**row, **place, **document["source"])

    return tuple(complete(row) for row in document["rows"])


def load() -> tuple[Row, ...]:
    """Every published row, by id."""
    return tuple(sorted((row for name in _texts() for row in _parse(name)), key=lambda row: row.id))


def rows_for(task: str, *, model: str | None = None) -> tuple[Row, ...]:
    """The rows beside which a run of `task` may be set, by id; of one `model` (as printed) where given.

    Only the files that name the task are parsed.
    """
    rows = (row for name, text in _texts().items() if task in text for row in _parse(name))
    fitting = (row for row in rows if row.suite_task == task and model in (None, row.model))
    return tuple(sorted(fitting, key=lambda row: row.id))


def row(id: str) -> Row:
    """The row called `id`.

    Raises:
        UserError: there is no such row; names the nearest ones.
    """
    for name, text in _texts().items():
        if id in text:
            for candidate in _parse(name):
                if candidate.id == id:
                    return candidate
    near = difflib.get_close_matches(id.upper(), [candidate.id for candidate in load()], n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else "ids look like A1-12, table and row"
    raise UserError(f"no published row is called {id!r}; {hint}. See results/published/.")


def comparison(task: str, rows: Sequence[Row], *, stand_in: bool, batch_size: int | None = None) -> str:
    """One sentence on what of a run may be compared with published rows, and what may not.

    Args:
        task: the run's task.
        rows: the published rows it stands beside.
        stand_in: whether the run's model or data is smaller than the papers'.
        batch_size: the run's global batch; None leaves equal batches to the reader.
    """
    if not rows:
        return f"No published row is known for {task}: these runs compare with one another only."
    if stand_in:
        return (
            f"A stand-in beside {_named(rows)}: only the pattern may be compared (who leads, and by what ratio), "
            "never accuracy, steps or seconds."
        )
    equal = [row for row in rows if batch_size in (None, row.batch_size)]
    if not equal:
        return f"No published row has batch {batch_size:,}: beside {_named(rows)} only the pattern may be compared."
    return (
        f"Accuracy and steps may be compared with {_named(equal)} where model, data and target are equal too; "
        "seconds only on the same hardware and number of devices."
    )


def _named(rows: Sequence[Row], most: int = 4) -> str:
    ids = [row.id for row in rows]
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more rows" if len(ids) > most else "")
