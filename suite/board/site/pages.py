"""Writes the pages of the site. Pages that would become too large are split into parts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from suite import disk, published
from suite.board.contest import compare_rows
from suite.board.groups import SCHEMA, Group, Leaderboard
from suite.board.news import Addition
from suite.board.sections import make_sections
from suite.board.site import text
from suite.board.site.claims import list_papers
from suite.board.site.drawing import Draw, load_templates
from suite.board.site.front import render_front
from suite.board.site.views import RowView, SectionView
from suite.claims.standing import Standing
from suite.record.record import drop_infinities

PART_BYTES = 380_000  # of the content of one page; with its frame a page stays below 500 kB
MOST_ROWS = 120  # of one table; about 2 kB each
MOST_TASKS = 300  # in the navigation
FILTERS = ("optimizer", "backend", "comm", "scale", "tuned")
PLACE = ("rank_low", "rank_high", "tier", "ratio", "ratio_low", "ratio_high")  # of an entry of leaderboard.json
ASSETS = ("style.css", "site.js")


@dataclass(frozen=True)
class Chunk:
    """A piece of a task's page that is not split: a ladder, or a part of a large one, with the values to filter by."""

    html: str
    ladder: str | None  # id of the ladder that begins here
    values: Mapping[str, frozenset[str]]


def render_pages(
    leaderboard: Leaderboard, standings: Sequence[Standing], out: Path, news: Sequence[Addition] = ()
) -> list[Path]:
    """Write the site into a folder: pages, style, script, `leaderboard.json`, and copies of the results (`raw/`).

    Equal arguments give equal bytes. Files of the folder that are not written stay.

    Args:
        leaderboard: groups and results.
        standings: what is known about the claims; the site says so if there are none.
        out: the folder; it is made if it is absent.
        news: the commits that added results, the newest first; the site says so if there are none.

    Returns:
        The pages.
    """
    draw = load_templates()
    views: dict[str, list[SectionView]] = {}
    for section in make_sections(leaderboard.groups):
        views.setdefault(section.hardest.task, []).append(SectionView(section, leaderboard))
    views = {task: sorted(members, key=lambda view: view.section.order) for task, members in views.items()}
    names = {task: text.make_slug(task) for task in views}
    tasks = {task: f"task/{name}.html" for task, name in list(names.items())[:MOST_TASKS]}
    pages: dict[str, str] = {}
    links: dict[str, str] = {}
    for task, members in views.items():
        for file, page, ladders in _task_pages(draw, task, members, names[task], tasks):
            pages[file] = page
            links |= {ladder: f"{file}#{ladder}" for ladder in ladders}
    all_views = [view for members in views.values() for view in members]
    pages["index.html"] = render_front(draw, leaderboard, all_views, links, standings, news, tasks)
    pages["claims.html"] = draw("claims.html.j2", root="", tasks=tasks, current=None, papers=list_papers(standings))
    _write_results(leaderboard, out)
    for name in ASSETS:
        _write(out / name, (resources.files("suite.board") / "templates" / name).read_text(encoding="utf-8"))
    for file, page in pages.items():
        _write(out / file, page)
    return [out / file for file in pages]


def _task_pages(
    draw: Draw, task: str, views: Sequence[SectionView], name: str, tasks: Mapping[str, str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the pages of a task: file, content, and the ids of the ladders that begin on it."""
    from markupsafe import Markup

    parts: list[list[Chunk]] = [[]]
    for chunk in _chunks(draw, task, views):
        if parts[-1] and sum(len(other.html.encode()) for other in [*parts[-1], chunk]) > PART_BYTES:
            parts.append([])
        parts[-1].append(chunk)
    files = [f"{name}.html" if index == 0 else f"{name}.{index + 1}.html" for index in range(len(parts))]
    for index, chunks in enumerate(parts):
        values = {
            key: sorted(set().union(*(chunk.values.get(key, frozenset()) for chunk in chunks))) for key in FILTERS
        }
        page = draw(
            "task.html.j2",
            root="../",
            tasks=tasks,
            current=task,
            part=index + 1,
            parts=files,
            filters={key: choices for key, choices in values.items() if len(choices) > 1},
            chunks=[Markup(chunk.html) for chunk in chunks],
        )
        yield f"task/{files[index]}", page, [chunk.ladder for chunk in chunks if chunk.ladder]


def _chunks(draw: Draw, task: str, views: Sequence[SectionView]) -> Iterator[Chunk]:
    for view in views:
        main, others = view.rows
        pieces = [(rows, ()) for rows in _pieces(main)] + [((), rows) for rows in _pieces(others)]
        if len(pieces) == 2 and len(main) + len(others) <= MOST_ROWS:
            pieces = [(main, others)]
        for index, (shown, folded) in enumerate(pieces):
            html = draw("section.html.j2", view=view, part=index + 1, rows=shown, others=folded)
            yield Chunk(html, view.id if index == 0 else None, _values(view, (*shown, *folded)))
    if rows := published.find_rows(task):
        yield Chunk(draw("published.html.j2", rows=rows, task=task), None, {})


def _pieces(rows: Sequence[RowView]) -> list[tuple[RowView, ...]]:
    return [tuple(rows[start : start + MOST_ROWS]) for start in range(0, len(rows), MOST_ROWS)]


def _values(view: SectionView, rows: Sequence[RowView]) -> dict[str, frozenset[str]]:
    """Return the values that rows can be filtered by."""
    group, entries = view.section.hardest, [row.entry for row in rows]
    return {
        "optimizer": frozenset(text.format_value(entry.optimizer) for entry in entries),
        "backend": frozenset(entry.backend or "–" for entry in entries),
        "comm": frozenset(entry.comm or "–" for entry in entries),
        "scale": frozenset([group.scale]),
        "tuned": frozenset(["tuned" if group.tuned else "not tuned"]),
    }


def _write_results(leaderboard: Leaderboard, out: Path) -> None:
    """Write leaderboard.json, and each result as a separate file."""
    for file, result in leaderboard.results.items():
        # without indentation, which takes most of the time for many results
        _write(out / "raw" / file, json.dumps(result.plain(), allow_nan=False, sort_keys=True, ensure_ascii=False))
    groups = [
        {**asdict(group), "title": group.title, "stand_in": group.stand_in, "entries": _entries(group)}
        for group in leaderboard.groups
    ]
    _write(out / "leaderboard.json", _json({"schema": SCHEMA, "groups": groups, "unreadable": leaderboard.unreadable}))


def _entries(group: Group) -> list[dict[str, Any]]:
    """Return a group's entries with their places in contests; those of baselines are null."""
    places: dict[str, dict[str, Any]] = {}
    for contest in compare_rows(group.entries, group.design):
        for one in contest.competitors:
            ratio = one.ratio
            ratios = (ratio.estimate, ratio.low, ratio.high) if ratio else (None, None, None)
            ranks = (one.rank_low, one.rank_high, one.tier) if one.is_ranked else (None, None, None)
            place = dict(zip(PLACE, (*ranks, *ratios), strict=True))
            places |= {row.results[0]["file"]: place for row in one.rows}
    absent = dict.fromkeys(PLACE)
    return [asdict(entry) | places.get(entry.results[0]["file"], absent) for entry in group.entries]


def _json(content: Any) -> str:
    return json.dumps(drop_infinities(content), allow_nan=False, sort_keys=True, ensure_ascii=False, indent=1)


def _write(path: Path, content: str) -> None:
    disk.make_folder(path.parent)
    with disk.report_errors(path):
        path.write_text(content.rstrip("\n") + "\n", encoding="utf-8", newline="\n")
