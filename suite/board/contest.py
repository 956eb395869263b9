"""Compares the rows of a group: which optimizer leads, which rows cannot be told apart, and what a framework changes.

Optimizers are compared in contests: rows of one backend, communication mode and number of devices. So a framework or a
communication mode never decides which optimizer leads.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from suite.board.rows import Entry
from suite.statistics.leaders import Separation, find_leader, find_separation

ALPHA = 0.05  # probability of ever naming a wrong leader in a contest; conventional

Kind = Literal["leads", "first", "tied", "slower", "missed", "alone", "no runs"]


@dataclass(frozen=True)
class Setting:
    """What the rows of a contest share."""

    backend: str
    comm: str
    world: int

    def __str__(self) -> str:
        return f"{self.backend}, {self.comm}, {self.world} device{'s' if self.world > 1 else ''}"


@dataclass(frozen=True)
class Place:
    """A row's place in its contest.

    Attributes:
        kind: `leads`: the row is separable from all rows of other optimizers. `first`: it has the lowest median, but no
            row leads. `tied`: the intervals do not separate it from the first row. `slower`: they do. `missed`: its
            median seed misses the target, separable or not. `alone`: no other optimizer took part. `no runs`: no run
            has finished.
        against: the steps of the row as a ratio to those of the contest's first row, with its interval.
    """

    kind: Kind
    against: Separation | None = None


@dataclass(frozen=True)
class Contest:
    """Rows that differ in optimizer and settings only, by median, with their places."""

    setting: Setting
    rows: tuple[Entry, ...]
    places: tuple[Place, ...]

    @property
    def leader(self) -> Entry | None:
        """The row of the optimizer that leads; None if the intervals separate no optimizer from all others."""
        return next((row for row, place in zip(self.rows, self.places, strict=True) if place.kind == "leads"), None)

    @property
    def not_separated(self) -> list[str]:
        """The other optimizers that have a row which the intervals do not separate from the first row."""
        first = self.rows[0].optimizer
        close = [
            row.optimizer
            for row, place in zip(self.rows, self.places, strict=True)
            if row.optimizer != first and place.against is not None and place.against.low <= 1
        ]
        return list(dict.fromkeys(close))

    @property
    def optimizers(self) -> int:
        """The number of different optimizers."""
        return len({row.optimizer for row in self.rows})


def compare_rows(entries: Iterable[Entry]) -> list[Contest]:
    """Find the contests of a group, the one with the most optimizers and results first. Baselines are in none."""
    members: dict[Setting, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.backend is not None and entry.comm is not None and entry.world is not None:
            members[Setting(entry.backend, entry.comm, entry.world)].append(entry)
    compared = [Contest(setting, tuple(rows), _places(rows)) for setting, rows in members.items()]

    def size(contest: Contest) -> tuple:
        setting = contest.setting
        results = sum(len(row.results) for row in contest.rows)
        # torch before jax where all else is equal: the order of the project's other tables
        return -contest.optimizers, -results, setting.world, setting.comm, setting.backend != "torch", setting.backend

    return sorted(compared, key=size)


def _places(rows: list[Entry]) -> tuple[Place, ...]:
    """Return the places of a contest's rows, which are in the order of their medians."""
    first = rows[0]
    if first.rank is None:
        return tuple(Place("missed" if row.steps else "no runs") for row in rows)
    # a row without a finished run tells nothing, and does not keep others from leading
    rivals = [row for row in rows if row.optimizer != first.optimizer and row.seeds]
    # The level of each comparison is that of `leader` for all rows: the data choose the first row among them.
    level = ALPHA / max(1, len(rows) - 1)
    against = {row.results[0]["file"]: find_separation(row.seeds, first.seeds, level) for row in rows[1:]}
    leads = (
        bool(rivals)
        and all(against[row.results[0]["file"]].low > 1 for row in rivals)  # necessary, and found in less time
        and find_leader([row.seeds for row in (first, *rivals)], alpha=level * len(rivals)) == 0
    )
    places = [Place("leads" if leads else "first" if rivals else "alone")]
    for row in rows[1:]:
        compared = against[row.results[0]["file"]]
        if row.steps is None:
            places.append(Place("no runs"))  # and nothing to compare
        elif row.rank is None:
            places.append(Place("missed", compared))
        else:
            places.append(Place("slower" if compared.low > 1 else "tied", compared))
    return tuple(places)


@dataclass(frozen=True)
class FrameworkEffect:
    """One row in jax, as a ratio to the same row in torch."""

    optimizer: str
    comm: str
    world: int
    variant: str  # the settings that set it apart from other rows of the optimizer, as text
    steps: Separation
    pairs: int  # of seeds
    seconds: Separation | None  # on one machine; None: no machine has timed both
    machine: str | None
    seconds_pairs: int


def framework_effects(entries: Iterable[Entry]) -> list[FrameworkEffect]:
    """Return the effect of the framework on every row that was run in both, in the order of the torch rows."""
    rows = list(entries)
    twins: dict[tuple, dict[str, Entry]] = defaultdict(dict)
    for row in rows:
        if row.backend is not None and row.comm is not None and row.world is not None and row.seeds:
            key = (row.optimizer, row.comm, row.world, repr(sorted(row.settings.items())))
            twins[key].setdefault(row.backend, row)
    several = defaultdict(set)
    for optimizer, _, _, variant in twins:
        several[optimizer].add(variant)
    effects = []
    for (optimizer, comm, world, variant), pair in twins.items():
        if "torch" not in pair or "jax" not in pair:
            continue
        jax, torch = pair["jax"], pair["torch"]
        machines = {timing.machine: timing for timing in torch.timings}
        both = [(timing, machines[timing.machine]) for timing in jax.timings if timing.machine in machines]
        timed = max(both, key=lambda timings: min(timing.seconds.n for timing in timings), default=None)
        effects.append(
            FrameworkEffect(
                optimizer=optimizer,
                comm=comm,
                world=world,
                variant=variant if len(several[optimizer]) > 1 else "",
                steps=find_separation(jax.seeds, torch.seeds, ALPHA),
                pairs=_pairs(jax.seeds, torch.seeds),
                seconds=find_separation(timed[0].seeds, timed[1].seeds, ALPHA) if timed else None,
                machine=timed[0].machine if timed else None,
                seconds_pairs=_pairs(timed[0].seeds, timed[1].seeds) if timed else 0,
            )
        )
    return effects


def _pairs(a: dict, b: dict) -> int:
    return len(a.keys() & b.keys()) or min(len(a), len(b))
