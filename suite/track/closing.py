"""What stands on the console when a run is over: its ladder, and the published rows beside it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite import published, record
from suite.contract import Target
from suite.published import Row
from suite.track import server

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 6
ORDER = "one a paper and optimizer; own optimizer, own batch size, fastest first"
OUTCOMES = {
    "reached": "reached the last target at step {step:,}",
    "exhausted": "made all max_steps={step} steps",
    "diverged": "diverged: the train loss at step {step:,} was {loss}",
    "failed": "failed: {error}",
}
FITTED = {"reached": "fitted, and reached the last target", "exhausted": "fitted"}  # baselines
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
    said = OUTCOMES | FITTED if "baseline" in spec else OUTCOMES
    outcome = said[kind].format_map(result["outcome"])
    console.print(Text.assemble((outcome, COLOURS[kind]), f". Not reached: {', '.join(missed)}" if missed else ""))
    console.print(speed(result))
    if "kernel" in result["bytes"]:
        console.print(wire(result["bytes"]))
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
    shown = choose(rows, optimizer=record.method(spec["config"]), batch_size=spec["batch_size"])
    console.print()
    if shown:
        console.print(f"{len(shown)} of {len(rows)} published rows, {ORDER}. All: suite board")
        console.print(beside(shown))
    elif rows:
        console.print(f"{len(rows)} published rows of {spec['task']}: suite board")
    stand_in = spec["scale"] != "paper"
    console.print(published.comparison(spec["task"], rows, stand_in=stand_in, batch_size=spec["batch_size"]))


def target_of(entry: Mapping[str, Any]) -> Target:
    """The target of an entry of the result's ladder."""
    return Target(entry["metric"], entry["value"], entry["higher_is_better"])


def ladder(result: Mapping[str, Any]) -> "Table":
    """The targets, when each was reached, and the last evaluation that missed it.

    A target that was missed needs more than the run had spent at its last evaluation.
    """
    table = columns("target", "reached", ">step", ">samples", ">train s", ">all-in s", ">last miss")
    seconds = {point["step"]: point["train_seconds"] for point in result["curve"]}
    for entry in result["targets"]:
        name, miss = str(target_of(entry)), entry["bracket"][0]
        before = ("none" if entry["reached"] else "") if miss is None else f"{seconds[miss]:.2f} (step {miss:,})"
        reached = "yes" if entry["reached"] else f"no, {best(result, entry)}"
        table.add_row(name, reached, *_spent(result, entry), before)
    return table


def _spent(result: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    """Steps, samples, seconds of training and of everything: to the target, or to the last evaluation that missed."""
    if not (entry["reached"] or result["curve"]):
        return ["", "", "", ""]
    point = entry if entry["reached"] else result["curve"][-1]
    more = "" if entry["reached"] or point["step"] is None else "> "  # a baseline would not go on
    counts = [f"{more}{point[name]:,}" if point[name] is not None else "" for name in ("step", "samples")]
    return counts + [f"{more}{point[name]:.2f}" for name in ("train_seconds", "wall_seconds")]


def best(result: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The best value of a target's metric, in words."""
    values = [point["metrics"][entry["metric"]] for point in result["curve"]]
    better = max if entry["higher_is_better"] else min
    return f"best {better(values):.4g}" if values else "never evaluated"


def speed(result: Mapping[str, Any]) -> str:
    """All-in time, compile time, step times and device in one line."""
    train, wall = result["train_seconds"], result["wall_seconds"]
    spent = "" if wall is None else f"{duration(train)} of training, {duration(wall)} all in · "
    device = result["segments"][-1]["device"] if result["segments"] else "no device"
    if "baseline" in result["spec"]:
        return f"{spent}{device}"
    cache = f" (cache {result['compile_cache']})" if result["compile_cache"] else ""
    median, tail = result["step_seconds"]["p50"], result["step_seconds"]["p99"]
    times = "no step made" if median is None else f"median step {1000 * median:.1f} ms, p99 {1000 * tail:.1f} ms"
    counted = f" · {result['flops']['trained']:.3g} FLOPs" if "flops" in result else ""
    return f"{spent}compile {result['compile_seconds']:.1f} s{cache} · {times}{counted} · {device}"


def wire(sent: Mapping[str, Any]) -> str:
    """On the test bed: bytes by the ledger, and by the kernel of the host."""
    kernel = sent["kernel"]
    beside = f"{kernel['ranks']} ranks" if kernel["ratio"] is None else f"{kernel['ratio']:.4f} times as much"
    return f"wire: {sent['sent']:,} bytes by rank 0's ledger · {kernel['sent']:,} by its host's kernel, {beside}"


def choose(rows: Sequence[Row], *, optimizer: str, batch_size: int | None) -> list[Row]:
    """The rows most worth seeing beside a run, at most `MOST_ROWS`, in the order that `ORDER` says.

    One for each paper and optimizer, of those whose value is a number: the one that prints most about what it took.
    Where there are too many, those that print most are taken.
    """

    def order(row: Row) -> tuple[Any, ...]:
        mine = _letters(optimizer) in _letters(row.optimizer or "")
        return not mine, row.batch_size != batch_size, row.time_seconds or float("inf"), row.id

    def fullest(row: Row) -> tuple[Any, ...]:
        told = (row.optimizer, row.hardware, row.devices, row.batch_size, row.epochs, row.time_seconds)
        return told.count(None), *order(row)

    numbers = sorted((row for row in rows if isinstance(row.value, int | float)), key=fullest)
    first = {(row.citation, row.optimizer): row for row in reversed(numbers)}
    return sorted(sorted(first.values(), key=fullest)[:MOST_ROWS], key=order)


def _letters(name: str) -> str:
    return re.sub(r"\W", "", name.lower())


def beside(rows: Sequence[Row]) -> "Table":
    """Published rows as a table; columns of text share the width that the numbers leave, and go on in a second line."""
    table = columns("row", "optimizer, paper*5", "model*4", "devices*4", ">batch", ">epochs", "value*4", ">time")
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


def columns(*heads: str) -> "Table":
    """A table with a rule below its head.

    `>name` is flush right; `name*3` takes three shares of the width that is left, in a table that expands, and breaks
    into lines instead of being cut.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        name, _, ratio = head.lstrip(">").partition("*")
        justify = "right" if head.startswith(">") else "left"
        table.add_column(name, justify=justify, no_wrap=not ratio, overflow="fold", ratio=int(ratio) if ratio else None)
    return table
