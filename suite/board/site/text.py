"""Numbers, ratios and file names as text."""

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any

from suite.board.contest import Place
from suite.board.rows import Entry, rank_median
from suite.statistics.leaders import Separation
from suite.statistics.summary import Summary

LONGEST_VALUE = 200  # characters of a setting's value on a page; results may contain anything


def format_number(value: float | str | None) -> str:
    """A number with four significant digits, or all digits of a whole number."""
    if value is None or isinstance(value, str):
        return value or ""
    if not math.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 100 and value == int(value) else f"{value:,.4g}"


def format_median(summary: Summary) -> str:
    """Return the median; a bound if half of the seeds or more missed the target."""
    if summary.median is not None:
        return format_number(summary.median)
    return "never" if summary.beyond is None else f"> {format_number(summary.beyond)}"


def format_steps(entry: Entry) -> str:
    """Steps to the target; a dash for a baseline, which makes no steps."""
    if entry.steps:
        return format_median(entry.steps)
    return "–" if entry.tries else "no finished run"


def sort_value(summary: Summary | None) -> str:
    """Return the median for the script that sorts tables; a row without one comes last."""
    return str(rank_median(summary)).replace("inf", "Infinity")


def format_interval(summary: Summary) -> str:
    """Return the interval of the median with its coverage; empty for one seed."""
    if summary.n == 1 or summary.low is None:
        return ""
    high = "beyond the budget" if summary.high is None else format_number(summary.high)
    return f"{format_number(summary.low)} to {high}, covers {summary.coverage:.0%}"


def format_size(count: float | None) -> str:
    """A number of bytes in decimal units; a dash if it is unknown."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # three digits are printed
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} TB"


def format_ratio(separation: Separation) -> str:
    """A ratio with its interval."""
    if separation.ratio is None:
        return "no ratio: a target was missed"
    if separation.low == 0 and math.isinf(separation.high):
        return f"{separation.ratio:.3g} × (no bounds yet)"
    high = "no bound" if math.isinf(separation.high) else f"{separation.high:.3g}"
    return f"{separation.ratio:.3g} × ({separation.low:.3g} to {high})"


def seeds_hint(separation: Separation) -> str:
    """How many more seeds would separate two rows."""
    if separation.seeds_needed is None:
        return "more than 200 more seeds, if ever"
    return f"about {separation.seeds_needed} more seed{'s' if separation.seeds_needed != 1 else ''} would separate them"


def describe_place(standing: Place, first: str) -> str:
    """A row's place in its contest, in words.

    Args:
        standing: the place.
        first: optimizer of the contest's first row.
    """
    if standing.kind == "leads":
        return "leads"
    if standing.kind == "first":
        return "lowest median; not separable from all others"
    if standing.kind == "alone":
        return "no other optimizer here"
    if standing.kind == "missed":
        close = standing.against is not None and standing.against.low <= 1
        return "median seed missed the target" + (f"; not separable from {first}" if close else "")
    if standing.against is None:
        return "no finished run"
    if standing.kind == "slower":
        return f"{format_ratio(standing.against)} the steps of {first}"
    return f"not separable from {first}: {format_ratio(standing.against)}; {seeds_hint(standing.against)}"


def format_value(content: Any) -> str:
    """A setting's value as text of limited length."""
    text = str(content)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text):,} characters)"


def join_names(names: Sequence[str], most: int = 4) -> str:
    """Names joined by commas; only the first ones if there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def make_slug(name: str) -> str:
    """A file name for a name from outside: lower-case letters, digits, `-` and `_` only.

    A name that had to be changed gets a part of its checksum, so that two names never share a file.
    """
    safe = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:60]
    return safe if safe == name else f"{safe or 'task'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
