"""Compares the rows of a group: ranks of the optimizers, and the effect of the framework.

A competitor is one optimizer with one set of settings, in every framework that it ran in. Competitors are ranked in
contests: equal communication mode, number of devices and evaluations. A framework or a communication mode never decides
which optimizer leads.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median
from typing import Literal

import numpy as np

from suite.board.design import Design
from suite.board.rows import Entry
from suite.statistics.anytime import LEAST_SEEDS, rank_anytime
from suite.statistics.flips import Ratio
from suite.statistics.paired import Grid, Row, compare_methods, find_differences, tabulate_values
from suite.statistics.ranking import Flags, Ranking
from suite.statistics.registered import plan_looks, rank_registered

BACKENDS = ("torch", "jax")  # the order of the project's other tables
LEAST_RANKED = 3  # seeds; with fewer, an interval covers 50 % or less (docs/statistics.md)
LATE = 2.0  # times a row's median steps, from which a seed counts as late

Kind = Literal["leads", "may lead", "behind", "alone", "not ranked", "no runs"]


@dataclass(frozen=True)
class Setting:
    """Conditions that the rows of a contest share."""

    comm: str
    world: int
    eval_every: int

    def __str__(self) -> str:
        devices = f"{self.world} device{'s' if self.world > 1 else ''}"
        return f"{self.comm}, {devices}, evaluated every {self.eval_every} steps"


@dataclass(frozen=True)
class Competitor:
    """One optimizer with one set of settings, and its place.

    Attributes:
        rows: its rows, torch first.
        kind: `leads`: it alone can be best. `may lead`: it and others can be. `behind`: another one is shown to be
            better. `alone`: no other optimizer is ranked. `not ranked`: it has fewer than `LEAST_RANKED` seeds, or none
            of them reached the target. `no runs`: no run has finished.
        rank_low: its lowest possible rank.
        rank_high: its highest possible rank.
        tier: all competitors of a tier are shown to be better than all of the next one.
        missed: its median seed misses the target in every framework.
        ratio: of its steps to those of the contest's first competitor; None for the first one.
        irregular: it has late seeds or misses, with which ranks are less certain.
        reason: why it is not ranked; empty if it is.
    """

    rows: tuple[Entry, ...]
    kind: Kind
    rank_low: int
    rank_high: int
    tier: int
    missed: bool = False
    ratio: Ratio | None = None
    irregular: bool = False
    reason: str = ""

    @property
    def is_ranked(self) -> bool:
        """Return whether it has a place in the contest."""
        return self.kind not in ("not ranked", "no runs")

    @property
    def optimizer(self) -> str:
        """Optimizer's name."""
        return self.rows[0].optimizer


@dataclass(frozen=True)
class Contest:
    """Competitors, the ranked ones first, from the best; `looks`: the seeds of a registered design's looks."""

    setting: Setting
    competitors: tuple[Competitor, ...]
    looks: tuple[int, ...]

    @property
    def leader(self) -> str | None:
        """Optimizer that leads; None if several can be best, or only one took part."""
        return next((one.optimizer for one in self.competitors if one.kind == "leads"), None)

    @property
    def possible_leaders(self) -> list[str]:
        """Optimizers that can be best."""
        return list(dict.fromkeys(one.optimizer for one in self.competitors if one.kind in ("leads", "may lead")))

    @property
    def ranked(self) -> list[Competitor]:
        """Competitors that have a place, the best first."""
        return [one for one in self.competitors if one.is_ranked]

    @property
    def optimizers(self) -> int:
        """Number of different optimizers."""
        return len({one.optimizer for one in self.competitors})

    @property
    def seeds(self) -> list[int]:
        """Number of seeds of each ranked competitor, or if there is none of each with finished runs, the most first."""
        counts = (_count_seeds(one.rows) for one in self.ranked or self.competitors)
        return sorted((count for count in counts if count), reverse=True)

    @property
    def rows(self) -> list[Entry]:
        """Rows of all competitors."""
        return [row for one in self.competitors for row in one.rows]


def compare_rows(entries: Iterable[Entry], design: Design | None = None) -> list[Contest]:
    """Find the contests of a group. Baselines are in none.

    The rows of a registered design, one for each of its optimizers, are the first contest, and the other rows are in
    others: the one with the most optimizers, then the one with the most results.

    Args:
        entries: of the group.
        design: registered for the group's ladder; it decides its own contest.
    """
    members: dict[Setting, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        if entry.comm is not None and entry.world is not None and entry.eval_every is not None:
            key = repr((entry.optimizer, sorted(entry.settings.items())))
            members[Setting(entry.comm, entry.world, entry.eval_every)][key].append(entry)
    contests: list[Contest] = []
    for setting, methods in members.items():
        rest = methods
        if design and design.covers(setting.comm, setting.world, setting.eval_every):
            registered = _choose_registered(methods, design)
            rest = {key: rows for key, rows in methods.items() if key not in registered}
            contests += [_compare(setting, [methods[key] for key in registered], design)] if registered else []
        contests += [_compare(setting, list(rest.values()))] if rest else []

    def size(contest: Contest) -> tuple:
        results = sum(len(row.results) for row in contest.rows)
        return (
            not contest.looks,
            -contest.optimizers,
            -results,
            contest.setting.world,
            contest.setting.comm,
            contest.setting.eval_every,
        )

    return sorted(contests, key=size)


def _choose_registered(methods: Mapping[str, list[Entry]], design: Design) -> list[str]:
    """Return the keys of the methods that a design registered: of each optimizer the one with the most of its seeds."""

    def count_seeds(key: str) -> int:
        return sum(len(row.seeds.keys() & set(design.seeds)) for row in methods[key])

    chosen: dict[str, str] = {}
    for key in sorted(methods, key=count_seeds, reverse=True):  # stable: by median among equals
        optimizer = methods[key][0].optimizer
        if optimizer in design.optimizers and count_seeds(key):
            chosen.setdefault(optimizer, key)
    return list(chosen.values())


def _compare(setting: Setting, methods: list[list[Entry]], design: Design | None = None) -> Contest:
    """Rank the methods of a contest.

    Methods that are not ranked count among the comparisons: whoever is left out afterwards makes no claim easier.
    """
    ran = [_order(rows) for rows in methods if any(row.seeds for row in rows)]
    idle = [_order(rows) for rows in methods if not any(row.seeds for row in rows)]
    everyone = _rank_registered(ran, design, setting) if design else _rank_anytime(ran, setting)
    reasons = [_explain_unranked(rows) for rows in ran]
    part = [index for index, reason in enumerate(reasons) if not reason]
    ranking = Ranking(everyone.wins[np.ix_(part, part)])
    seeds = [_by_backend(ran[index]) for index in part]
    best = {ran[part[row]][0].optimizer for row in ranking.possible_best}
    alone = len({ran[index][0].optimizer for index in part}) == 1

    def place(row: int) -> Competitor:
        rows = ran[part[row]]
        kind: Kind = "alone" if alone else "behind"
        if row in ranking.possible_best and not alone:
            kind = "leads" if len(best) == 1 else "may lead"
        low, high = ranking.ranks[row]
        missed, irregular = _misses(rows), _is_irregular(rows)
        return Competitor(tuple(rows), kind, low, high, ranking.tiers[row], missed, irregular=irregular)

    def order(row: int) -> tuple:
        rows, (low, high) = ran[part[row]], ranking.ranks[row]
        grid = Grid(_budget([rows]), setting.eval_every)
        spent = fmean(grid.read(seen) for row in rows for seen in row.seeds.values())
        return low, _misses(rows), spent, high, rows[0].optimizer, rows[0].results[0]["file"]

    ordered = sorted(range(len(part)), key=order)
    placed = [place(row) for row in ordered[:1]]
    placed += [replace(place(row), ratio=_ratio(ranking, seeds, ordered[0], row)) for row in ordered[1:]]
    unranked = [
        Competitor(tuple(rows), "not ranked", 1, len(ran), 1, _misses(rows), reason=reason)
        for rows, reason in zip(ran, reasons, strict=True)
        if reason
    ]
    absent = [Competitor(tuple(rows), "no runs", 1, len(methods), 1) for rows in idle]
    return Contest(setting, (*placed, *unranked, *absent), design.looks if design else ())


def _explain_unranked(rows: Sequence[Entry]) -> str:
    """Return why a method with finished runs is not ranked; an empty text if it is."""
    count = _count_seeds(rows)
    if count < LEAST_RANKED:
        return f"{count} seed{'s' if count > 1 else ''}, of the {LEAST_RANKED} that are needed"
    if not any(one.reached for row in rows for one in row.seeds.values()):
        return f"none of {count} seeds reached the target"
    return ""


def _count_seeds(rows: Iterable[Entry]) -> int:
    return len({seed for row in rows for seed in row.seeds})


def _rank_registered(ran: list[list[Entry]], design: Design, setting: Setting) -> Ranking:
    """Rank the methods of a design."""
    chosen = {rows[0].optimizer: index for index, rows in enumerate(ran)}
    grid = Grid(_budget(ran), setting.eval_every)
    # an optimizer without runs has no seeds, and counts as registered
    seeds = [_by_backend(ran[chosen[name]]) if name in chosen else {} for name in design.optimizers]
    values = tabulate_values(seeds, design.backends, design.seeds, grid)
    wins = rank_registered(values, plan_looks(len(design.optimizers), design.looks)).wins
    present = [place for place, name in enumerate(design.optimizers) if name in chosen]
    return _spread(wins[np.ix_(present, present)], [chosen[design.optimizers[place]] for place in present], len(ran))


def _rank_anytime(ran: list[list[Entry]], setting: Setting) -> Ranking:
    """Rank the methods with enough seeds for evidence; others have no place among them."""
    counts = [len({seed for row in rows for seed in row.seeds}) for rows in ran]
    part = [index for index, count in enumerate(counts) if count >= LEAST_SEEDS]
    differences: dict[tuple[int, int], list[float]] = {}
    for (i, first), (j, second) in combinations(enumerate(part), 2):
        grid = Grid(_budget([ran[first], ran[second]]), setting.eval_every)
        found = find_differences(_by_backend(ran[first]), _by_backend(ran[second]), grid)
        differences[i, j] = list(found.values())
    return _spread(rank_anytime(len(part), differences).wins, part, len(ran))


def _spread(shown: Flags, part: list[int], size: int) -> Ranking:
    """Return the ranking of all methods from the wins of a part of them."""
    wins = np.zeros((size, size), bool)
    wins[np.ix_(part, part)] = shown
    return Ranking(wins)


def _budget(methods: Iterable[Iterable[Entry]]) -> int:
    return min((row.budget or 0 for rows in methods for row in rows), default=0)


def _ratio(ranking: Ranking, seeds: list[dict[str, Row]], first: int, index: int) -> Ratio:
    """Return the ratio to the first competitor; where that one is shown to be earlier, it is 1 or more."""
    ratio = compare_methods(seeds[index], seeds[first])
    if not ranking.wins[first, index] or ratio.high < 1:
        return ratio
    estimate = None if ratio.estimate is None else max(1.0, ratio.estimate)
    return replace(ratio, low=max(1.0, ratio.low), estimate=estimate)


def _order(rows: Iterable[Entry]) -> list[Entry]:
    return sorted(rows, key=lambda row: (BACKENDS.index(row.backend) if row.backend in BACKENDS else 9, row.backend))


def _by_backend(rows: Iterable[Entry]) -> dict[str, Row]:
    return {row.backend: row.seeds for row in rows if row.backend is not None}


def _misses(rows: Iterable[Entry]) -> bool:
    """Return whether a method's median seed misses the target in every framework."""
    return all(row.rank is None for row in rows)


def _is_irregular(rows: Iterable[Entry]) -> bool:
    """Return whether a method has misses, or seeds that are late by far."""
    seen = [one for row in rows for one in row.seeds.values()]
    middle = median(one.spent for one in seen)
    return any(not one.reached or one.spent > LATE * middle for one in seen)


@dataclass(frozen=True)
class FrameworkEffect:
    """One row in jax, as a ratio to the same row in torch."""

    optimizer: str
    variant: str  # the settings that set it apart from other rows of the optimizer, as text
    steps: Ratio
    seconds: Ratio | None  # on one machine; None: no machine has timed both
    machine: str | None


def find_framework_effects(contest: Contest) -> list[FrameworkEffect]:
    """Return the effect of the framework on every competitor that ran in both."""
    names = [one.optimizer for one in contest.competitors]
    effects: list[FrameworkEffect] = []
    for one in contest.competitors:
        rows = {row.backend: row for row in one.rows if row.seeds}
        if "torch" not in rows or "jax" not in rows:
            continue
        jax, torch = rows["jax"], rows["torch"]
        machines = {timing.machine: timing for timing in torch.timings}
        both = [(timing, machines[timing.machine]) for timing in jax.timings if timing.machine in machines]
        timed = max(both, key=lambda timings: min(timing.seconds.n for timing in timings), default=None)
        effects.append(
            FrameworkEffect(
                optimizer=one.optimizer,
                variant=repr(sorted(torch.settings.items())) if names.count(one.optimizer) > 1 else "",
                steps=_compare_rows(jax.seeds, torch.seeds),
                seconds=_compare_rows(timed[0].seeds, timed[1].seeds) if timed else None,
                machine=timed[0].machine if timed else None,
            )
        )
    return effects


def _compare_rows(first: Row, second: Row) -> Ratio:
    return compare_methods({"": first}, {"": second})
