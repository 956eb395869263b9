"""Prints a finished sweep on the console: one line for each run, from its result file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.record import record
from suite.record.result import Result
from suite.track.closing import make_columns
from suite.track.console import format_metric, make_printer
from suite.track.words import target_of

if TYPE_CHECKING:
    from rich.table import Table

TOO_LOW = "‡"  # as on the board
Run = tuple[Sequence[str], Path | None]  # overrides and directory; None for a run that was rejected


def show_sweep(runs: Sequence[Run]) -> None:
    """Print the runs of a sweep side by side."""
    console = make_printer()
    started = sum(directory is not None for _, directory in runs)
    hint = "; to rank them, run suite board" if started else ""
    console.print(
        f"\n{started} of {len(runs)} runs were started{hint}" if started < len(runs) else f"\n{started} runs{hint}"
    )
    console.print(make_table(runs))


def make_table(runs: Sequence[Run]) -> "Table":
    """A table of the runs in their order; each is named by the overrides that not all runs share."""
    table = make_columns("run*6", "target reached*3", ">at step", ">train s", "at the end*3", "result*8")
    table.expand = True
    common = set.intersection(*(set(overrides) for overrides, _ in runs))
    for overrides, directory in runs:
        name = " ".join(override for override in overrides if override not in common) or "the same command"
        path = directory / "result.json" if directory else None
        if path is None or not path.exists():
            table.add_row(name, "no result", "", "", "", str(directory or "rejected"))
        else:
            result = record.read_result(path)
            table.add_row(name, *_numbers(result), str(path))
            if result.busy_pauses:
                table.caption = f"{TOO_LOW} too low: threads computed while the clock was stopped; see the run's output"
    return table


def _numbers(result: Result) -> list[str]:
    """Return the hardest target reached, the steps and seconds to it, and the metric at the end of the run.

    If no target was reached, `>` marks the steps and seconds that the run spent.
    """
    ladder, kind, curve = result.targets, result.outcome.kind, result.curve
    hits = [target for target in ladder if target.reached]
    words = str(target_of(hits[-1])) if hits else "none"
    words += f", {kind}" if kind in ("diverged", "failed") else ""
    prefix, spent = ("", hits[-1:]) if hits else ("> ", curve[-1:])
    step = [f"{prefix}{point.step:,}" for point in spent if point.step is not None]
    mark = f" {TOO_LOW}" if result.busy_pauses else ""
    seconds = [f"{prefix}{point.train_seconds:.2f}{mark}" for point in spent]
    metrics = curve[-1].metrics if curve else {}
    name = ladder[-1].metric if ladder else next(iter(metrics), "")
    return [words, *(step or [""]), *(seconds or [""]), format_metric(name, metrics) if name in metrics else ""]
