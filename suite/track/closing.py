"""Prints a finished run on the console: its ladder, its times, and the published rows to compare it with."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite import published
from suite.claims.standings import describe_bearing
from suite.published import Row
from suite.published.matching import ORDER, choose_rows, select_comparable
from suite.record import record
from suite.record.result import Result
from suite.track import words
from suite.track.address import how_to_open

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLACED = ("run_dir=", "force=", "resume=")  # words that belong to one directory
RANKED = 5  # seeds with which the board's intervals cover 94 %
COLOURS = {"reached": "green", "exhausted": "yellow", "diverged": "red", "failed": "red"}


def show_result(console: "Console", result: Result, path: Path, rows: Sequence[Row], *, brief: bool = False) -> None:
    """Print a result.

    Args:
        console: rich's console.
        result: contents of the run's result.json.
        path: of the result.json.
        rows: every published row of the task.
        brief: whether to leave out the published rows and the notes on data.
    """
    from rich.text import Text

    track = record.load_run(result).track.name
    console.print()
    if result.targets:
        console.print(make_table(words.LADDER, words.list_ladder(result)))
    kind = result.outcome.kind
    missed = f". Not reached: {', '.join(names)}" if (names := words.list_missed(result)) else ""
    console.print(Text.assemble((words.describe_outcome(result), COLOURS[kind]), missed))
    console.print(words.describe_speed(result))
    if waits := words.describe_waits(result):
        console.print(waits)
    if crowding := words.describe_crowding(result):
        console.print(crowding)
    if result.busy_pauses:
        console.print(words.warn_unbilled(result))
    if result.bytes.kernel:
        console.print(words.describe_wire(result.bytes.sent, result.bytes.kernel))
    data = result.data
    if not brief:
        if result.curve:
            _compare(console, result, rows)
            for line in describe_bearing(result):
                console.print(line)
        if data.note:
            console.print(f"Data: {data.note}")
    if losses := record.read_data(data).losses():
        files = "; the result lists each file" if data.skipped else ""
        console.print(f"Data: {losses}{files}")
    console.print()
    console.print(f"result  {path}", soft_wrap=True)
    unsent = f"not sent (track=none); to send it, run suite sync {path.parent}"
    console.print(f"MLflow  {unsent if track == 'none' else how_to_open()}", soft_wrap=True)
    if not brief:
        for word, command in zip(("next", "", ""), list_next_commands(result, path), strict=False):
            console.print(f"{word:<8}{command}", soft_wrap=True, markup=False, highlight=False)


def list_next_commands(result: Result, path: Path) -> list[str]:
    """Return commands to run next: a page of the run, the same in the other framework, and more seeds."""
    words = [word for word in shlex.split(result.command)[1:] if not word.startswith(PLACED)]
    typed, spec = shlex.join(words), result.spec
    commands = [f"suite report {shlex.quote(str(path.parent))}"]
    if spec.backend and "backend=" not in typed:
        commands.append(f"suite {typed} backend={'jax' if spec.backend == 'torch' else 'torch'}")
    if "seed=" not in typed:
        commands.append(f"suite -m {typed} seed={','.join(map(str, range(RANKED)))}")
    return commands


def _compare(console: "Console", result: Result, rows: Sequence[Row]) -> None:
    """Print published rows, and a sentence on what may be compared with them."""
    spec = result.spec
    task, stand_in, batch_size = spec.task, spec.scale != "paper", spec.batch_size
    nearest = choose_rows(rows, record.load_run(result), samples=result.data.samples.get("train", 0))
    console.print()
    if rows and not nearest:
        console.print(
            f"{len(rows)} published rows of {task}, none with this metric and model; to see them, run suite board"
        )
        return
    if nearest:
        console.print(f"{len(nearest)} of {len(rows)} published rows, {ORDER}. To see all, run suite board")
        console.print(make_table(words.PUBLISHED, words.published_cells(nearest), expand=True))
    console.print(published.compare_rows(task, select_comparable(rows, task), stand_in=stand_in, batch_size=batch_size))


def make_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, expand: bool = False) -> "Table":
    """A table for the console; in one that expands, text columns share the width left by the numbers, and wrap."""
    filled = make_columns(*heads)
    filled.expand = expand
    for row in rows:
        filled.add_row(*row)
    return filled


def make_columns(*heads: str) -> "Table":
    """An empty table with a rule below its header.

    Args:
        heads: the columns. `>name` is right-aligned. `name*3` takes three shares of the remaining width in a table that
            expands, and wraps its text.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        name, _, ratio = head.lstrip(">").partition("*")
        justify = "right" if head.startswith(">") else "left"
        table.add_column(name, justify=justify, no_wrap=not ratio, overflow="fold", ratio=int(ratio) if ratio else None)
    return table
