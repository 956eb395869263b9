"""Measures rounds of two sides until every benchmark is decided."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from suite.contract import UserError
from suite.regress.benchmarks import Benchmark
from suite.regress.rule import ALPHA, MARGIN, ROUNDS, Look, Verdict, judge_ratios, look_at
from suite.regress.sample import Sampler, count_ranks, list_cores
from suite.regress.sides import Side

Measure = Callable[[Sequence[Side], Benchmark, int | None], list[float]]  # as `sample.Sampler`


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        margin: smallest slow-down that is reported, as a share.
        alpha: of one look at all benchmarks together.
        rounds: most rounds of one look.
        seconds: of the whole command; a round that has begun is finished.
    """

    margin: float = MARGIN
    alpha: float = ALPHA
    rounds: int = ROUNDS
    seconds: float = float("inf")


@dataclass
class Outcome:
    """Measurement of one benchmark.

    Attributes:
        benchmark: what ran.
        first: (A, B) of each round, in the benchmark's unit.
        second: of the rounds after a first alarm.
        error: why it could not be measured; None if it could.
    """

    benchmark: Benchmark
    first: list[tuple[float, float]] = field(default_factory=list)
    second: list[tuple[float, float]] = field(default_factory=list)
    error: str | None = None

    def looks(self, limits: Limits, family: int) -> tuple[Look, Look | None] | None:
        """Return what the rounds show; None before the first one.

        Args:
            limits: margin and error rate.
            family: number of benchmarks that share the error rate.
        """
        if not self.first:
            return None
        both = [
            look_at([b / a for a, b in rounds], limits.margin, limits.alpha / family) if rounds else None
            for rounds in (self.first, self.second)
        ]
        assert both[0] is not None
        return both[0], both[1]

    def verdict(self, limits: Limits, family: int) -> Verdict | None:
        """Return the answer so far; None before the first round."""
        looks = self.looks(limits, family)
        return judge_ratios(*looks) if looks else None


class Session:
    """One comparison of two sides.

    Args:
        sides: A and B.
        benchmarks: what is measured.
        limits: when to stop.
        measure: measures one round; None: with runs of the sides. Tests replace it.
        seed: of the random order in which the sides of a round run.
        report: called after each round with the benchmark's outcome.

    Attributes:
        outcomes: one for each benchmark, in order.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        benchmarks: Sequence[Benchmark],
        limits: Limits,
        *,
        measure: Measure | None = None,
        seed: int = 0,
        report: Callable[[Outcome], None] = lambda outcome: None,
    ):
        self.sides, self.limits = sides, limits
        self.outcomes = [Outcome(benchmark) for benchmark in benchmarks]
        self._measure, self._report, self._seed = measure or Sampler(), report, seed

    def run(self) -> list[Outcome]:
        """Measure one round of every undecided benchmark after another, until all are decided or a limit is reached.

        The benchmarks take turns, so that one noisy minute does not hit all rounds of one of them.
        """
        until = time.monotonic() + self.limits.seconds
        while undecided := [outcome for outcome in self.outcomes if self._open(outcome)]:
            for outcome in undecided:
                if time.monotonic() >= until:
                    return self.outcomes
                self._round(outcome)
                self._report(outcome)
        return self.outcomes

    def _open(self, outcome: Outcome) -> bool:
        """Return whether another round may change the answer."""
        if outcome.error:
            return False
        looks = outcome.looks(self.limits, len(self.outcomes))
        if len(outcome.first) + len(outcome.second) >= self._most(outcome.benchmark):
            return False
        if looks is None:
            return True
        first, second = looks
        if first.state != "slower":
            return first.state == "undecided" and first.rounds < self.limits.rounds
        return second is None or (second.state == "undecided" and second.rounds < self.limits.rounds)

    def _most(self, benchmark: Benchmark) -> float:
        """Return the rounds for which both sides have measurements."""
        return min((len(side.saved.values[benchmark]) for side in self.sides if side.saved), default=float("inf"))

    def _round(self, outcome: Outcome) -> None:
        """Measure both sides once, on the same core; saved measurements are taken one after the other."""
        looks = outcome.looks(self.limits, len(self.outcomes))
        rounds = outcome.second if looks and looks[0].state == "slower" else outcome.first
        number = len(outcome.first) + len(outcome.second)
        choice = list_cores(count_ranks(self.sides, outcome.benchmark))
        values = {i: side.saved.values[outcome.benchmark][number] for i, side in enumerate(self.sides) if side.saved}
        order = [i for i in self._order(outcome.benchmark, number) if i not in values]
        run = [self.sides[i] for i in order]
        try:
            measured = self._measure(run, outcome.benchmark, choice[number % len(choice)])
        except UserError as error:
            outcome.error = str(error)
            return
        values |= dict(zip(order, measured, strict=True))
        rounds.append((values[0], values[1]))

    def _order(self, benchmark: Benchmark, number: int) -> tuple[int, int]:
        """Return the side that starts first in a round, and the other one.

        The process that starts second is slower (by 0.6 % in results/processes.csv). So two rounds in a row have both
        orders; which comes first is random.
        """
        first = random.Random(f"{self._seed} {benchmark.name} {number // 2}").randrange(2) ^ number % 2
        return first, 1 - first
