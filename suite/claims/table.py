"""Prints what is known about claims."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from suite.claims.standing import Measured, Standing
from suite.load import Plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

COLOURS = {
    "reproduced": "green",
    "pattern seen": "green",
    "contradicted": "red",
    "pattern not seen": "red",
    "undecided": "yellow",
}


def show_list(known: Sequence[Standing]) -> None:
    """Print one line for each claim: its verdict, the pattern of its stand-in, and the minutes for what is missing."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")  # fits into 80 columns
    for column in ("claim", "verdict", "stand-in", "min"):
        table.add_column(column, no_wrap=True, justify="right" if column == "min" else "left")
    for one in known:
        minutes = f"{one.minutes:.2g}" if one.minutes else ""
        table.add_row(one.claim.id, _coloured(one.verdict), _coloured(one.pattern), minutes)
    console = Console()
    console.print(table)
    console.print(
        "min: minutes to measure what is missing here, on two cores. suite reproduce CLAIM shows a claim's checks"
    )


def show_table(known: Sequence[Standing], *, everything: bool) -> None:
    """Print claims with their checks.

    Args:
        known: the claims.
        everything: also print claims without any measured value.
    """
    from rich.console import Console

    console = Console()
    for one in known:
        if everything or any(item.values for item in one.checks):
            _show_claim(console, one)
    counts: dict[str, int] = {}
    for one in known:
        for word in (one.verdict, one.pattern):
            if word:
                counts[word] = counts.get(word, 0) + 1
    console.print(" · ".join(f"{count} {word}" for word, count in counts.items()))


def _show_claim(console: "Console", one: Standing) -> None:
    from rich.padding import Padding
    from rich.text import Text

    words = [one.verdict or "", f"stand-in: {one.pattern}" if one.pattern else ""]
    colours = [COLOURS.get(one.verdict or "", ""), COLOURS.get(one.pattern or "", "")]
    parts = [(f"  {word}", colour) for word, colour in zip(words, colours, strict=True) if word]
    console.print(Text.assemble((one.claim.id, "bold"), *parts))
    console.print(Padding(Text(f"{one.claim.statement} ({one.citation}; {one.claim.place})"), (0, 0, 0, 2)))
    for item in one.checks:
        console.print(Padding(Text(f"{item.check.name}: {item.check.quantity}"), (0, 0, 0, 2)))
        console.print(Padding(Text(format_line(item)), (0, 0, 0, 4)))
    for stand_in in dict.fromkeys(item.check.stands_for for item in one.checks if item.check.stands_for):
        console.print(Padding(Text(f"Stand-in: {stand_in}"), (0, 0, 0, 2)))
    if one.claim.note:
        console.print(Padding(Text(f"Note: {one.claim.note}"), (0, 0, 0, 2)))
    console.print()


def format_line(item: Measured) -> str:
    """A check's published value, claimed region, measured value with its interval, state and reason."""
    check = item.check
    parts = [] if check.published is None else [f"published {format_number(check.published)}"]
    parts.append(f"claimed {check.holds}")
    if item.estimate is not None:
        interval = f" ({format_number(item.low)} to {format_number(item.high)}, {len(item.values)} seeds)"
        parts.append(f"measured {format_number(item.estimate)}{'' if check.statistic == 'exact' else interval}")
    return " · ".join([*parts, f"{item.state}: {format_reason(item)}"])


def format_reason(item: Measured) -> str:
    """Why a check has its state, and what would decide it."""
    parts = [item.reason]
    if item.check.excluding and item.values:
        parts.append(f"runs that {item.check.excluding} do not count")
    if item.seeds_needed:
        data = f", which need {item.check.needs}" if item.check.needs else ""
        total = len(item.values) + item.seeds_needed
        option = f" (--seeds {total})" if total > item.check.most else ""
        parts.append(f"about {item.seeds_needed} seeds more would decide{option}{data}")
    if item.state == "out of reach" and item.check.cost:
        parts.append(f"cost: {item.check.cost}")
    if item.state == "out of reach" and item.check.runs:
        parts.append(f"to plan it, run suite plan {next(iter(item.check.runs.values()))}")
    return "; ".join(parts)


def format_number(value: float | None) -> str:
    """A number with four significant digits; empty for None."""
    if value is None:
        return ""
    return ("−∞" if value < 0 else "∞") if math.isinf(value) else f"{value:.4g}"


def _coloured(word: str | None) -> "Text":
    from rich.text import Text

    return Text(word or "", style=COLOURS.get(word or "", ""))


def as_dict(one: Standing) -> dict[str, Plain]:
    """A claim with what is known about it, for JSON."""
    checks = [
        {**asdict(item), "check": item.check.model_dump(exclude_none=True), "holds_for": str(item.check.holds)}
        for item in one.checks
    ]
    return {
        "id": one.claim.id,
        "paper": one.paper,
        "citation": one.citation,
        "statement": one.claim.statement,
        "place": one.claim.place,
        "rows": one.claim.rows,
        "note": one.claim.note,
        "verdict": one.verdict,
        "pattern": one.pattern,
        "minutes": one.minutes,
        "checks": checks,
    }
