"""What stands on the console when a sweep is over: its runs, one line each, from their result files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.track.closing import columns, target_of
from suite.track.console import printer

if TYPE_CHECKING:
    from rich.table import Table

Run = tuple[Sequence[str], Path | None]  # its overrides, and its directory; None where it was refused


def show(runs: Sequence[Run]) -> None:
    """Print the runs of a sweep side by side."""
    console = printer()
    made = sum(directory is not None for _, directory in runs)
    hint = "; suite board ranks them" if made else ""
    console.print(f"\n{made} of {len(runs)} runs were made{hint}" if made < len(runs) else f"\n{made} runs{hint}")
    console.print(comparison(runs))


def comparison(runs: Sequence[Run]) -> "Table":
    """The runs in the order in which they were made, named by what is not the same in all of them."""
    table = columns("run*6", "target reached*3", ">at step", ">train s", "at the end*3", "result*8")
    table.expand = True
    common = set.intersection(*(set(overrides) for overrides, _ in runs))
    for overrides, directory in runs:
        name = " ".join(override for override in overrides if override not in common) or "the same command"
        path = directory / "result.json" if directory else None
        if path is None or not path.exists():
            table.add_row(name, "no result", "", "", "", str(directory or "refused"))
        else:
            table.add_row(name, *_numbers(json.loads(path.read_text())), str(path))
    return table


def _numbers(result: Mapping[str, Any]) -> list[str]:
    """The hardest target reached, the steps and seconds to it, and its metric at the end of the run.

    Where none was reached: more than the steps and seconds spent.
    """
    ladder, kind, curve = result["targets"], result["outcome"]["kind"], result["curve"]
    hits = [target for target in ladder if target["reached"]]
    words = str(target_of(hits[-1])) if hits else "none"
    words += f", {kind}" if kind in ("diverged", "failed") else ""
    more, spent = ("", hits[-1:]) if hits else ("> ", curve[-1:])
    step = [f"{more}{point['step']:,}" for point in spent if point["step"] is not None]
    seconds = [f"{more}{point['train_seconds']:.2f}" for point in spent]
    metrics = curve[-1]["metrics"] if curve else {}
    name = ladder[-1]["metric"] if ladder else next(iter(metrics), "")
    return [words, *(step or [""]), *(seconds or [""]), f"{name} {metrics[name]:.4g}" if name in metrics else ""]
