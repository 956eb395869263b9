"""Prints the answer of a comparison: as a table, as Markdown, as JSON and as JUnit's XML."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any
from xml.etree import ElementTree

from suite.record.environment import describe_machine
from suite.regress.rule import Verdict
from suite.regress.session import Limits, Outcome
from suite.regress.sides import Side

SCHEMA = 1
HEAD = ("benchmark", "metric", "A", "B", "B / A", "interval", "rounds", "answer")
COLOURS = {"slower": "red", "not slower": "green", "undecided": "yellow", "failed": "red"}


def judge_outcome(outcome: Outcome, limits: Limits, family: int) -> str:
    """slower, not slower, undecided, or failed."""
    verdict = outcome.verdict(limits, family)
    return "failed" if outcome.error or verdict is None else verdict.state


def list_rows(outcomes: Sequence[Outcome], limits: Limits) -> list[list[str]]:
    """A row of text for each benchmark, under `HEAD`."""
    return [_row(outcome, limits, len(outcomes)) for outcome in outcomes]


def _row(outcome: Outcome, limits: Limits, family: int) -> list[str]:
    benchmark, state = outcome.benchmark, judge_outcome(outcome, limits, family)
    verdict = outcome.verdict(limits, family)
    if verdict is None:
        return [benchmark.name, benchmark.metric, "", "", "", "", "0", state]
    shown = verdict.shown
    both = [*outcome.first, *outcome.second]
    middle = [format_amount(median(values), benchmark.metric) for values in zip(*both, strict=True)]
    interval = f"{shown.low:.3f} to {shown.high:.3f}"
    return [benchmark.name, benchmark.metric, *middle, f"{shown.ratio:.3f}", interval, f"{verdict.rounds}", state]


def format_amount(value: float, metric: str) -> str:
    """Seconds or bytes with a unit and three digits."""
    if metric == "memory":
        return f"{value / 2**20:.4g} MiB"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def print_table(sides: tuple[Side, Side], outcomes: Sequence[Outcome], limits: Limits) -> None:
    """Print the answer in the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in HEAD:
        grid.add_column(name, no_wrap=name in ("interval", "answer", "B / A"))
    for row in list_rows(outcomes, limits):
        grid.add_row(*row[:-1], Text(row[-1], style=COLOURS[row[-1]]))
    console.print(grid)
    console.print(_words(sides, limits), soft_wrap=True)
    for line in list_reasons(outcomes, limits):
        console.print(Text(line), soft_wrap=True)


def _words(sides: tuple[Side, Side], limits: Limits) -> str:
    names = [side.name + (f" ({side.commit[:12]})" if side.commit else "") for side in sides]
    line = f"A: {names[0]} · B: {names[1]} · slower means by {100 * limits.margin:g} % or more"
    earlier = any(side.saved for side in sides)
    return line + (
        " · saved measurements: a change of the machine's speed counts as one of the code" if earlier else ""
    )


def list_reasons(outcomes: Sequence[Outcome], limits: Limits) -> list[str]:
    """A line for each benchmark whose answer needs one."""
    lines = []
    for outcome in outcomes:
        verdict = outcome.verdict(limits, len(outcomes))
        if outcome.error:
            lines.append(f"{outcome.benchmark.name}: {outcome.error}")
        elif verdict and (verdict.state != "not slower" or outcome.second):
            lines.append(f"{outcome.benchmark.name}: {verdict.state}: {verdict.reason}")
    return lines


def format_markdown(sides: tuple[Side, Side], outcomes: Sequence[Outcome], limits: Limits) -> str:
    """Return the answer as one table, for a comment on a pull request."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for row in list_rows(outcomes, limits):
        state = f"**{row[-1]}**" if row[-1] in ("slower", "failed") else row[-1]
        lines.append("| " + " | ".join(_escaped(cell) for cell in (*row[:-1], state)) + " |")
    lines += ["", _escaped(_words(sides, limits)), *(f"- {_escaped(line)}" for line in list_reasons(outcomes, limits))]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Text that cannot end a cell or begin a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def as_dict(sides: tuple[Side, Side], outcomes: Sequence[Outcome], limits: Limits) -> dict[str, Any]:
    """Return the answer and every measurement, for JSON."""
    return {
        "schema": SCHEMA,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "sides": {name: {"typed": side.name, "commit": side.commit} for name, side in zip("AB", sides, strict=True)},
        "limits": asdict(limits),
        "benchmarks": [
            _entry(outcome, outcome.verdict(limits, len(outcomes)), limits, outcomes) for outcome in outcomes
        ],
    }


def _entry(outcome: Outcome, verdict: Verdict | None, limits: Limits, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "name": outcome.benchmark.name,
        "run": list(outcome.benchmark.run),
        "metric": outcome.benchmark.metric,
        "answer": judge_outcome(outcome, limits, len(outcomes)),
        "verdict": asdict(verdict) if verdict else None,
        "first": outcome.first,
        "second": outcome.second,
        "error": outcome.error,
    }


def format_junit(sides: tuple[Side, Side], outcomes: Sequence[Outcome], limits: Limits) -> str:
    """Return the answer as JUnit's XML: a benchmark that is slower is a failure, and an undecided one is skipped."""
    states = [judge_outcome(outcome, limits, len(outcomes)) for outcome in outcomes]
    suite = ElementTree.Element(
        "testsuite",
        name="suite regress",
        tests=str(len(outcomes)),
        failures=str(states.count("slower")),
        errors=str(states.count("failed")),
        skipped=str(states.count("undecided")),
    )
    tags = {"slower": "failure", "failed": "error", "undecided": "skipped"}
    for outcome, state, row in zip(outcomes, states, list_rows(outcomes, limits), strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname="regress", name=outcome.benchmark.name)
        if state in tags:
            text = " · ".join(f"{name} {cell}" for name, cell in zip(HEAD, row, strict=True) if cell)
            ElementTree.SubElement(case, tags[state], message=f"{_words(sides, limits)} · {text}").text = outcome.error
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
