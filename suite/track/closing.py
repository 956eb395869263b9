"""What stands on the console when a run is over: its ladder, and the published rows beside it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite import published
from suite.contract import Target
from suite.published import Row
from suite.track import server

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 8
OUTCOMES = {
    "reached": "reached the last target at step {step:,}",
    "exhausted": "made all max_steps={step} steps",
    "diverged": "diverged: the loss at step {step:,} was {loss}",
    "failed": "failed: {error}",
}
COLOURS = {"reached": "green", "exhausted": "yellow", "diverged": "red", "failed": "red"}


def show(console: "Console", result: Mapping[str, Any], path: Path, rows: Sequence[Row]) -> None:
    """Print a result.

    Args:
        console: rich's.
        result: of the run.
        path: of its result.json.
        rows: every published row of the task.
    """
    from rich.text import Text

    config, spec = result["spec"]["config"], result["spec"]
    console.print()
    if result["targets"]:
        console.print(ladder(result))
    kind = result["outcome"]["kind"]
    missed = [str(target_of(entry)) for entry in result["targets"] if not entry["reached"]]
    outcome = OUTCOMES[kind].format_map(result["outcome"])
    console.print(Text.assemble((outcome, COLOURS[kind]), f". Not reached: {', '.join(missed)}" if missed else ""))
    console.print(speed(result))
    if result["curve"]:
        _compare(console, spec, rows)
    data = result["data"]
    if data["note"]:
        console.print(f"Data: {data['note']}")
    if data["skipped"]:
        console.print(f"Data: {len(data['skipped'])} files left out, named in the result")
    console.print()
    console.print(f"result  {path}", soft_wrap=True)
    unsent = f"not sent (track=none); suite sync {path.parent} sends it"
    console.print(f"MLflow  {unsent if config['track']['name'] == 'none' else server.how_to_open()}", soft_wrap=True)


def _compare(console: "Console", spec: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Print published rows, and what may be concluded from standing beside them."""
    shown = choose(rows, optimizer=spec["optimizer"], batch_size=spec["batch_size"])
    console.print()
    if shown:
        console.print(beside(shown))
    if len(rows) > len(shown):
        more = f"and {len(rows) - len(shown)} more" if shown else f"{len(rows)}"
        console.print(f"{more} published rows of {spec['task']}: suite board")
    stand_in = spec["scale"] != "paper"
    console.print(published.comparison(spec["task"], rows, stand_in=stand_in, batch_size=spec["batch_size"]))


def target_of(entry: Mapping[str, Any]) -> Target:
    """The target of an entry of the result's ladder."""
    return Target(entry["metric"], entry["value"], entry["higher_is_better"])


def ladder(result: Mapping[str, Any]) -> "Table":
    """The targets, when each was reached, and the last evaluation that missed it."""
    table = _table("target", "reached", ">step", ">samples", ">train s", ">last miss", ">all-in s")
    seconds = {point["step"]: point["train_seconds"] for point in result["curve"]}
    for entry in result["targets"]:
        name, miss = str(target_of(entry)), entry["bracket"][0]
        before = "none" if miss is None else f"{seconds[miss]:.2f} (step {miss:,})"
        if entry["reached"]:
            train, wall = f"{entry['train_seconds']:.2f}", f"{entry['wall_seconds']:.2f}"
            table.add_row(name, "yes", f"{entry['step']:,}", f"{entry['samples']:,}", train, before, wall)
        else:
            table.add_row(name, f"no, {_best(result, entry)}", "", "", "", before, "")
    return table


def _best(result: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    values = [point["metrics"][entry["metric"]] for point in result["curve"]]
    better = max if entry["higher_is_better"] else min
    return f"best {better(values):.4g}" if values else "never evaluated"


def speed(result: Mapping[str, Any]) -> str:
    """Compile time, step times and device in one line."""
    cache = f" (cache {result['compile_cache']})" if result["compile_cache"] else ""
    steps, device = result["step_seconds"], result["segments"][-1]["device"] if result["segments"] else "no device"
    median, tail = steps["p50"], steps["p99"]
    times = "no step made" if median is None else f"median step {1000 * median:.1f} ms, p99 {1000 * tail:.1f} ms"
    return f"compile {result['compile_seconds']:.1f} s{cache} · {times} · {device}"


def choose(rows: Sequence[Row], *, optimizer: str, batch_size: int) -> list[Row]:
    """The rows most worth seeing beside a run, at most `MOST_ROWS`.

    One for each paper and optimizer, of those whose value is a number: the one that prints most about what it took;
    among equals one of the run's optimizer, then of its batch size, then the fastest.
    """

    def order(row: Row) -> tuple[Any, ...]:
        told = (row.optimizer, row.hardware, row.devices, row.batch_size, row.epochs, row.time_seconds)
        mine = _letters(optimizer) in _letters(row.optimizer or "")
        return told.count(None), not mine, row.batch_size != batch_size, row.time_seconds or float("inf"), row.id

    numbers = sorted((row for row in rows if isinstance(row.value, int | float)), key=order)
    first = {(row.citation, row.optimizer): row for row in reversed(numbers)}
    return sorted(first.values(), key=order)[:MOST_ROWS]


def _letters(name: str) -> str:
    return re.sub(r"\W", "", name.lower())


def beside(rows: Sequence[Row]) -> "Table":
    """Published rows as a table; columns of text share the width that the numbers leave."""
    table = _table("row", "optimizer, paper*5", "model*4", "devices*4", ">batch", ">epochs", "value*4", ">time")
    table.expand = True
    for row in rows:
        paper = re.split("[,:(]", row.citation)[0].strip()
        devices = " × ".join(str(part) for part in (row.devices, row.hardware) if part is not None)
        batch = f"{row.batch_size:,}" if isinstance(row.batch_size, int) else row.batch_size or ""
        epochs = "" if row.epochs is None else f"{row.epochs:g}"
        time = "" if row.time_seconds is None else duration(row.time_seconds)
        who, value = ", ".join(filter(None, (row.optimizer, paper))), f"{row.value:g} {row.metric}"
        table.add_row(row.id, who, row.model or "", devices, batch, epochs, value, time)
    return table


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, to three digits."""
    for limit, unit, name in ((100, 1, "s"), (6000, 60, "min"), (float("inf"), 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return "forever"


def _table(*columns: str) -> "Table":
    """A table with a rule below its head.

    `>name` is flush right; `name*3` takes three shares of the width that is left, in a table that expands.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        name, _, ratio = column.lstrip(">").partition("*")
        justify = "right" if column.startswith(">") else "left"
        table.add_column(name, justify=justify, no_wrap=True, ratio=int(ratio) if ratio else None)
    return table
