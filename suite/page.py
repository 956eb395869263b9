"""The leaderboard as one static page that anyone can rebuild, and as JSON.

The same leaderboard gives the same bytes: nothing depends on when or where it was written.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from suite import published
from suite.board import SCHEMA, Entry, Group, Leaderboard, sortable
from suite.stats import Summary


@dataclass(frozen=True)
class Section:
    """The groups of one ladder: everything is equal but the target, hardest first."""

    groups: tuple[Group, ...]

    @property
    def hardest(self) -> Group:
        """The group of the last target."""
        return self.groups[0]

    @property
    def title(self) -> str:
        """The conditions in words, task and target apart."""
        group = self.hardest
        scale = f"{group.scale} stand-in" if group.stand_in else f"{group.scale} scale"
        tuned = "tuned" if group.tuned else "not tuned here"
        data = f"{scale} on {group.data['name']} ({group.data['kind']})"
        model = f"task version {group.task_version}, model {group.variant}"
        return " · ".join([data, model, group.batch, tuned])


def sections(groups: Iterable[Group]) -> list[Section]:
    """Groups by ladder, in the order in which the ladders come first."""
    ladders: dict[tuple, list[Group]] = {}
    for group in groups:
        key = (group.task, group.task_version, group.variant, group.scale, group.label, group.batch_size, group.tuned)
        ladders.setdefault(key, []).append(group)
    return [Section(tuple(sorted(ladder, key=_ease))) for ladder in ladders.values()]


def _ease(group: Group) -> tuple:
    """Sorts targets, hardest first."""
    if group.target is None:
        return (1,)
    value = group.target["value"]
    return 0, group.target["metric"], -value if group.target["higher_is_better"] else value


def render(leaderboard: Leaderboard, out: Path) -> None:
    """Write `index.html`, `leaderboard.json` and the results themselves (`raw/`) under `out`."""
    import jinja2

    (out / "raw").mkdir(parents=True, exist_ok=True)
    for file, result in leaderboard.results.items():
        _write(out / "raw" / file, json.dumps(result, sort_keys=True, ensure_ascii=False, indent=1))
    groups = [{**asdict(group), "title": group.title, "stand_in": group.stand_in} for group in leaderboard.groups]
    document = {"schema": SCHEMA, "groups": groups, "unreadable": leaderboard.unreadable}
    _write(out / "leaderboard.json", json.dumps(document, sort_keys=True, ensure_ascii=False, indent=1))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("suite"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": _number, "median": _median, "interval": _interval, "sortable": sortable}
    environment.filters["steps"] = _steps
    tasks: dict[str, list[Section]] = {}
    for section in sections(leaderboard.groups):
        tasks.setdefault(section.hardest.task, []).append(section)
    rows = {task: published.rows_for(task) for task in tasks}
    page = environment.get_template("board.html.j2")
    text = page.render(leaderboard=leaderboard, tasks=tasks, rows=rows, comparison=published.comparison)
    _write(out / "index.html", text)


def _write(path: Path, text: str) -> None:
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8", newline="\n")


def _number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if abs(value) >= 100 and value == int(value) else f"{value:,.4g}"


def _median(summary: Summary) -> str:
    if summary.median is not None:
        return _number(summary.median)
    return "never" if summary.beyond is None else f"> {_number(summary.beyond)}"


def _steps(entry: Entry) -> str:
    """Steps to the target; a baseline makes none."""
    if entry.steps:
        return _median(entry.steps)
    return "–" if entry.tries else "no finished run"


def _interval(summary: Summary) -> str:
    if summary.n == 1 or summary.low is None:
        return ""
    high = "beyond the budget" if summary.high is None else _number(summary.high)
    return f"{_number(summary.low)} to {high}, covers {summary.coverage:.0%}"
