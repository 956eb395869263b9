"""Ladders of targets: the groups that differ only in the target, with the hardest target first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from suite.board.contest import Contest, compare_rows
from suite.board.groups import Group
from suite.board.rows import Entry
from suite.entries.condition import format_condition


@dataclass(frozen=True)
class Section:
    """Groups of one ladder, hardest target first."""

    groups: tuple[Group, ...]

    @property
    def hardest(self) -> Group:
        """Group of the last target."""
        return self.groups[0]

    @property
    def title(self) -> str:
        """Conditions in words, without task and target."""
        group = self.hardest
        model = f"task version {group.task_version}, model {group.variant}"
        return " · ".join([self.source, model, group.batch, *group.specials, self.tuned])

    @property
    def source(self) -> str:
        """Scale and data in words."""
        group = self.hardest
        scale = f"{group.scale} stand-in" if group.stand_in else f"{group.scale} scale"
        return f"{scale} on {group.data['name']} ({group.data['kind']})"

    @property
    def tuned(self) -> str:
        """Return whether the runs are tuned and up to date, in words."""
        tuned = "tuned" if self.hardest.tuned else "not tuned here"
        newer = self.hardest.superseded_by
        return f"{tuned}, superseded by version {newer} of the task" if newer else tuned

    @property
    def order(self) -> tuple[bool, bool, bool]:
        """Sort key of the ladders: present versions first, then tuned ones, then registered ones."""
        registered = self.main is not None and bool(self.main.looks)
        return self.hardest.superseded_by is not None, not self.hardest.tuned, not registered

    @cached_property
    def contests(self) -> tuple[Contest, ...]:
        """Contests for the hardest target, the largest first."""
        return tuple(compare_rows(self.hardest.entries, self.hardest.design))

    @property
    def main(self) -> Contest | None:
        """Largest contest; None if only baselines were run."""
        return self.contests[0] if self.contests else None

    @property
    def leader(self) -> str | None:
        """Optimizer that leads the main contest; None if none does."""
        return self.main.leader if self.main else None

    @property
    def featured(self) -> tuple[Entry, ...]:
        """For each backend and optimizer of the main contest the row with the most seeds, then the best one."""
        rows: dict[tuple[str | None, str], Entry] = {}
        for row in sorted(self.main.rows if self.main else (), key=lambda row: -len(row.seeds)):  # stable
            rows.setdefault((row.backend, row.optimizer), row)
        return tuple(rows.values())


def make_sections(groups: Iterable[Group]) -> list[Section]:
    """Collect the groups of each ladder; the ladders are in the order of their first groups.

    A section shows the rows of its hardest target. A group with results that this target lacks, because they were run
    with another ladder, therefore begins a new section.
    """
    conditions: dict[str, list[Group]] = {}
    for group in groups:
        conditions.setdefault(format_condition(group.conditions), []).append(group)
    return [section for alike in conditions.values() for section in _split(sorted(alike, key=_ease))]


def _split(groups: list[Group]) -> Iterator[Section]:
    """Return the sections of groups that differ only in the target, hardest first."""
    ladders: list[tuple[set[str], list[Group]]] = []
    for group in groups:
        files = {result["file"] for entry in group.entries for result in entry.results}
        for shown, ladder in ladders:
            if files <= shown and _metric(group) == _metric(ladder[0]):
                ladder.append(group)
                break
        else:
            ladders.append((files, [group]))
    return (Section(tuple(ladder)) for _, ladder in ladders)


def _metric(group: Group) -> str | None:
    return group.target["metric"] if group.target else None


def _ease(group: Group) -> tuple:
    """Sort key of targets, hardest first."""
    if group.target is None:
        return (1,)
    value = group.target["value"]
    return 0, group.target["metric"], -value if group.target["higher_is_better"] else value
