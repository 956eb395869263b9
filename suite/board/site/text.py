"""Numbers, ratios and file names as text."""

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any

from suite.board.contest import Competitor, Contest
from suite.board.rows import Entry, rank_median
from suite.statistics.anytime import LEAST_SEEDS
from suite.statistics.flips import Ratio
from suite.statistics.summary import Summary

USUAL_COVERAGE = 0.9  # of an interval; the pages say that five seeds give 94 %
MOST_NAMED = 3  # optimizers that may lead
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


def format_ratio(ratio: Ratio) -> str:
    """A ratio with its interval, and its coverage if that is low; a bound if a target was missed."""
    if not ratio.pairs:
        return "no common seed"
    if math.isinf(ratio.low) or ratio.high == 0:
        return "no ratio: the target was missed too often"
    if math.isinf(ratio.high) and ratio.low <= 0:
        return "no ratio: a target was missed"
    notes = [f"covers {100 * ratio.coverage:.0f} %"] if ratio.coverage < USUAL_COVERAGE else []
    if ratio.pairs == 1:
        notes = ["one seed"]
    if math.isinf(ratio.high):
        value = f"at least {ratio.low:.3g} ×"
    elif ratio.low == 0:
        value = f"at most {ratio.high:.3g} ×"
    else:
        value = f"{math.sqrt(ratio.low * ratio.high) if ratio.estimate is None else ratio.estimate:.3g} ×"
        if ratio.pairs > 1:
            notes.insert(0, f"{ratio.low:.3g} to {ratio.high:.3g}")
    return f"{value} ({'; '.join(notes)})" if notes else value


def _is_bounded(ratio: Ratio) -> bool:
    """Return whether a ratio has a bound that is a number."""
    return 0 < ratio.low < math.inf or 0 < ratio.high < math.inf


def format_ranks(competitor: Competitor) -> str:
    """Interval of a rank."""
    low, high = competitor.rank_low, competitor.rank_high
    return f"rank {low}" if low == high else f"rank {low} to {high}"


def describe_place(competitor: Competitor, first: str) -> str:
    """A competitor's place in its contest, in words.

    Args:
        competitor: of the contest.
        first: optimizer of the contest's first competitor.
    """
    if competitor.kind == "no runs":
        return "no finished run"
    if competitor.kind == "not ranked":
        return f"not ranked: {competitor.reason}"
    if competitor.kind == "alone":
        return "no other optimizer ranked here"
    parts = ["" if competitor.kind == "behind" else competitor.kind, format_ranks(competitor)]
    if competitor.missed:
        parts.insert(0, "median seed missed the target")
    if competitor.ratio and _is_bounded(competitor.ratio):
        parts.append(f"{format_ratio(competitor.ratio)} the steps of {first}")
    if competitor.irregular:
        parts.append("late seeds or misses")
    return "; ".join(part for part in parts if part)


def has_few_seeds(contest: Contest) -> bool:
    """Return whether a contest cannot rank anybody, because fewer than two of its competitors have enough seeds."""
    several = len(contest.seeds) > 1
    return not contest.looks and several and (not contest.ranked or contest.seeds[1] < LEAST_SEEDS)


def describe_design(contest: Contest) -> str:
    """Return whether a contest was registered before its runs, and its seeds, in words."""
    if contest.looks:
        return f"registered, compared after {' and '.join(map(str, contest.looks))} seeds"
    most, fewest = max(contest.seeds, default=0), min(contest.seeds, default=0)
    seeds = f"{most} seed{'s' if most != 1 else ''}" if most == fewest else f"{fewest} to {most} seeds"
    return f"exploratory, {seeds}{': too few to rank' if has_few_seeds(contest) else ''}"


def tell_story(contest: Contest) -> str:
    """Who leads a contest, may lead it, or was first of too few seeds, and how many times its steps two others need.

    The others are the next two that are shown to be behind; if none is, the next two.
    """
    if not contest.ranked:
        hits = [row.steps.hits for row in contest.rows if row.steps]
        if not hits:
            return "No run has finished."
        return "Nobody is ranked: too few seeds." if any(hits) else "No seed reached the target."
    first, *others = contest.ranked
    if first.kind == "alone":
        return f"Only {first.optimizer} {'was run' if contest.optimizers == 1 else 'is ranked'}."
    if all(one.missed for one in contest.ranked):
        return "No median seed reached the target."
    leaders = contest.possible_leaders
    story = f"Any of {len(leaders)} optimizers may lead"
    if has_few_seeds(contest):
        story = f"Too few seeds to rank; {first.optimizer} was first"
    elif len(leaders) <= MOST_NAMED:
        story = f"{join_names(leaders)} {'may lead' if len(leaders) > 1 else 'leads'}"
    ratios: dict[str, Ratio] = {}
    for one in [one for one in others if one.kind == "behind"] or others:
        if one.ratio and _is_bounded(one.ratio) and one.optimizer != first.optimizer:
            ratios.setdefault(one.optimizer, one.ratio)
    needs = ", ".join(f"{name} needs {format_ratio(ratio)}" for name, ratio in list(ratios.items())[:2])
    return f"{story}; {needs} the steps of {first.optimizer}." if needs else f"{story}."


def join_names(names: Sequence[str]) -> str:
    """`a`, `a or b`, or `a, b or c`."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def format_value(content: Any) -> str:
    """A setting's value as text of limited length."""
    text = str(content)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text):,} characters)"


def make_slug(name: str) -> str:
    """A file name for a name from outside: lower-case letters, digits, `-` and `_` only.

    A name that had to be changed gets a part of its checksum, so that two names never share a file.
    """
    safe = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:60]
    return safe if safe == name else f"{safe or 'task'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
