"""A ladder as the templates show it: pictures, tables of rows and the effect of the framework."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from suite import published
from suite.board.contest import FrameworkEffect, find_framework_effects
from suite.board.groups import Leaderboard
from suite.board.rows import Entry, Timing
from suite.board.sections import Section
from suite.board.site import curves, text
from suite.board.site.dots import Dots, draw_dots
from suite.board.site.strip import draw_strip
from suite.entries.doubts import Doubt

MOST_OPTIMIZERS = 14  # in a picture; the table has all
MOST_LINKS = 24  # to results of one row
MOST_SETTINGS = 40  # of one row


@dataclass(frozen=True)
class RowView:
    """One row of a table."""

    entry: Entry
    place: str
    kind: str  # of the place
    own: dict[str, str]  # the settings in which rows of the same optimizer differ
    other: dict[str, str]  # the other settings that differ in the group
    easier: tuple[tuple[str, str], ...]  # easier targets with their steps
    doubts: int  # about results of the row
    links: tuple[dict[str, Any], ...]
    more_links: int


@dataclass(frozen=True)
class SectionView:
    """A ladder as its page shows it."""

    section: Section
    leaderboard: Leaderboard

    @property
    def id(self) -> str:
        """Anchor of the ladder."""
        return self.section.hardest.name.rpartition("-")[2]

    @cached_property
    def rows(self) -> tuple[tuple[RowView, ...], tuple[RowView, ...]]:
        """Rows of the main contest and baselines, and the other rows."""
        section = self.section
        places: dict[str, tuple[str, str]] = {}
        for contest in section.contests:
            first = contest.competitors[0].optimizer
            for one in contest.competitors:
                places |= {_id(row): (text.describe_place(one, first), one.kind) for row in one.rows}
        main = {_id(row) for row in section.main.rows} if section.main else set[str]()
        own = _own_settings(section.hardest.entries)
        easier = [
            (group.goal, {_id(row): text.format_steps(row) for row in group.entries}) for group in section.groups[1:]
        ]
        views: tuple[list[RowView], list[RowView]] = ([], [])
        for row in section.hardest.entries:
            place, kind = places.get(_id(row), ("baseline: not ranked", "alone"))
            own_names = own[_id(row)]
            settings = {name: text.format_value(value) for name, value in list(row.settings.items())[:MOST_SETTINGS]}
            view = RowView(
                entry=row,
                place=place,
                kind=kind,
                own={name: value for name, value in settings.items() if name in own_names},
                other={name: value for name, value in settings.items() if name not in own_names},
                easier=tuple((goal, rows[_id(row)]) for goal, rows in easier if _id(row) in rows),
                doubts=sum(self._doubted(row, doubt) for doubt in self.doubts),
                links=row.results[:MOST_LINKS],
                more_links=max(0, len(row.results) - MOST_LINKS),
            )
            views[0 if row.backend is None or _id(row) in main else 1].append(view)
        return tuple(views[0]), tuple(views[1])

    @property
    def caption(self) -> str:
        """Caption of the table of the main contest."""
        goal, main = self.section.hardest.goal, self.section.main
        if main is None:
            return f"Rows for {goal}"
        return f"Rows for {goal}: {main.setting}; {self.design}"

    @property
    def verdict(self) -> str:
        """Which optimizer leads, or which can, as a sentence."""
        return text.tell_story(self.section.main) if self.section.main else "Only baselines were run."

    @property
    def name(self) -> str:
        """Ladder in a few words, for a link."""
        group = self.section.hardest
        return f"{group.task} on {group.data['name']}{'' if group.tuned else ', not tuned here'}"

    @property
    def is_contested(self) -> bool:
        """Return whether several optimizers were run, with a version of the task that is not superseded."""
        main = self.section.main
        return main is not None and main.optimizers > 1 and self.section.hardest.superseded_by is None

    @property
    def design(self) -> str:
        """Return whether the main contest is registered, in words."""
        return text.describe_design(self.section.main) if self.section.main else ""

    @property
    def strip(self) -> str:
        """Places of the optimizers in the main contest, as a small picture."""
        return draw_strip(self.section.main) if self.section.main else ""

    @property
    def results(self) -> int:
        """Number of results for the hardest target."""
        return sum(len(row.results) for row in self.section.hardest.entries)

    @cached_property
    def featured(self) -> tuple[Entry, ...]:
        """Rows of the pictures, those of one optimizer together, by the lower median of the backends."""
        names = dict.fromkeys(row.optimizer for row in sorted(self.section.featured, key=lambda row: row.rank or 10**9))
        shown = list(names)[:MOST_OPTIMIZERS]
        backend = {"torch": 0, "jax": 1}
        rows = [row for row in self.section.featured if row.optimizer in shown]
        return tuple(sorted(rows, key=lambda row: (shown.index(row.optimizer), backend.get(row.backend or "", 2))))

    @cached_property
    def doubts(self) -> list[Doubt]:
        """Doubts about results of the ladder."""
        entries = self.section.hardest.entries
        return [doubt for doubt in self.leaderboard.doubts if any(self._doubted(row, doubt) for row in entries)]

    def _doubted(self, row: Entry, doubt: Doubt) -> bool:
        """Return whether a doubt is about a result of a row."""
        return any(doubt.concerns(self.leaderboard.results[result["file"]]) for result in row.results)

    @property
    def left_out(self) -> int:
        """Number of optimizers without a place in the pictures."""
        return len({row.optimizer for row in self.section.featured}) - len({row.optimizer for row in self.featured})

    @property
    def steps_picture(self) -> str:
        """Steps to each target."""
        easier = [{_id(row): row for row in group.entries} for group in self.section.groups[1:]]

        def medians(row: Entry) -> Iterator[float]:
            for rows in easier:
                twin = rows.get(_id(row))
                if twin and twin.steps and twin.steps.median is not None:
                    yield twin.steps.median

        lines = [
            Dots(row.optimizer, row.backend or "", row.steps, row.seeds, tuple(medians(row))) for row in self.featured
        ]
        return draw_dots(lines, "steps", f"Steps to {self.section.hardest.goal} for each optimizer and framework")

    @cached_property
    def machine(self) -> str | None:
        """Machine with the most timed seeds of the featured rows."""
        counts: dict[str, int] = {}
        for row in self.featured:
            for timing in row.timings:
                counts[timing.machine] = counts.get(timing.machine, 0) + timing.seconds.n
        return max(sorted(counts), key=lambda name: counts[name], default=None)

    @property
    def seconds_picture(self) -> str:
        """Seconds to the hardest target on one machine."""
        lines = [
            Dots(row.optimizer, row.backend or "", timing.seconds, timing.seeds)
            for row in self.featured
            if (timing := _on(row, self.machine))
        ]
        return draw_dots(lines, "seconds", f"Training seconds to {self.section.hardest.goal}") if lines else ""

    @property
    def untimed(self) -> int:
        """Number of featured rows that are absent from the picture of seconds."""
        return sum(_on(row, self.machine) is None for row in self.featured)

    @property
    def panels(self) -> list[tuple[str, str]]:
        """Curves of the metric, a panel for each optimizer."""
        target = self.section.hardest.target
        if target is None:
            return []
        drawn = [curves.curve_of(row, self.leaderboard.results, target["metric"]) for row in self.featured]
        return curves.draw_panels(drawn, target, f"c{self.id}")

    @property
    def frameworks(self) -> list[FrameworkEffect]:
        """Effect of the framework on each competitor of the main contest that was run in both."""
        return find_framework_effects(self.section.main) if self.section.main else []

    @property
    def comparison(self) -> str:
        """Return the words on comparisons with published rows."""
        group = self.section.hardest
        rows = published.find_rows(group.task)
        return published.compare_rows(group.task, rows, stand_in=group.stand_in, batch_size=group.batch_size)


def _id(row: Entry) -> str:
    """A row's identity over the targets of a ladder: its first result."""
    return row.results[0]["file"]


def _on(row: Entry, machine: str | None) -> Timing | None:
    return next((timing for timing in row.timings if timing.machine == machine), None)


def _own_settings(rows: tuple[Entry, ...]) -> dict[str, set[str]]:
    """For each row the names of the settings in which it differs from rows with the same columns."""
    alike: dict[tuple, list[Entry]] = {}
    for row in rows:
        alike.setdefault((row.optimizer, row.comm, row.backend, row.world), []).append(row)
    names: dict[str, set[str]] = {}
    for members in alike.values():
        known = {name for row in members for name in row.settings}
        differing = {name for name in known if len({repr(row.settings.get(name)) for row in members}) > 1}
        names |= {_id(row): differing for row in members}
    return names
