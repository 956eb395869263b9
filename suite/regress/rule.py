"""Decides from paired rounds whether side B is slower than side A.

Each round gives one ratio: B's number over A's, from two fresh processes (`suite/regress/sample.py`). The mean and the
median of the ratios' logarithms each have a confidence sequence (`suite/statistics/sequential.py`), so that looking
after every round does not add errors. The mean needs fewer rounds; the median is not moved by single late processes.

- *slower*: an interval lies above 1 and its estimate beyond the margin, **and** the same holds again in new rounds that
  do not include the first ones.
- *not slower*: an interval lies below 1 + margin.
- *undecided*: neither.

If the sides are equal, a round's ratio and its inverse are equally likely, so that mean and median of its logarithm are
0. Then "slower" needs two independent looks that are both wrong, with probability alpha² at most (for the mean, if
the logarithms are Gaussian). docs/regression.md has the measured error rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from suite.statistics.sequential import MOST_NEEDED, Statistic, decide

State = Literal["slower", "not slower", "undecided"]
ALPHA = 0.1  # of one look; two must agree, so that a false alarm has probability 0.01
MARGIN = 0.02  # smallest slow-down that is reported, as a share
ROUNDS = 30  # most rounds of one look
LEAST = 4  # rounds before the first decision: fewer tell nothing about the spread


@dataclass(frozen=True)
class Look:
    """Result of some rounds.

    Attributes:
        state: of these rounds alone.
        statistic: which one is shown: the one that decided, otherwise the mean.
        ratio: geometric mean or median of B over A.
        low: lower bound of its interval.
        high: upper bound.
        rounds: number of rounds.
        rounds_needed: about how many more would decide; 0 if decided, None if that is unknown or more than 200.
    """

    state: State
    statistic: Statistic
    ratio: float
    low: float
    high: float
    rounds: int
    rounds_needed: int | None


def look_at(ratios: Sequence[float], margin: float = MARGIN, alpha: float = ALPHA) -> Look:
    """Return what the ratios of some rounds show.

    Args:
        ratios: B over A, one per round, positive.
        margin: smallest slow-down that is reported, as a share.
        alpha: probability that the interval ever excludes the true ratio.

    Raises:
        ValueError: without a ratio, or for one that is not positive.
    """
    # a quarter for each side of each statistic
    looks = [_look(ratios, margin, alpha / 4, statistic) for statistic in ("mean", "median")]
    decided = {one.state for one in looks if one.state != "undecided"}
    if len(decided) == 1:
        return next(one for one in looks if one.state in decided)
    needed = [one.rounds_needed for one in looks if one.rounds_needed]
    return replace(looks[0], state="undecided", rounds_needed=min(needed, default=None))


def _look(ratios: Sequence[float], margin: float, alpha: float, statistic: Statistic) -> Look:
    """Return what one statistic shows."""
    decision = decide(ratios, None, 1 + margin, statistic, alpha, log=True)
    state: State = "undecided"
    if len(ratios) >= LEAST:
        if decision.state == "inside":
            state = "not slower"
        elif decision.low > 1 and decision.estimate >= 1 + margin:
            state = "slower"
    needed = decision.seeds_needed if state == "undecided" else 0
    return Look(state, statistic, decision.estimate, decision.low, decision.high, len(ratios), needed)


@dataclass(frozen=True)
class Verdict:
    """Answer for one benchmark.

    Attributes:
        state: slower, not slower or undecided.
        shown: the look whose ratio and interval are reported: the confirming one if there was one, because the first
            was chosen for being large.
        rounds: number of all rounds.
        reason: one sentence.
    """

    state: State
    shown: Look
    rounds: int
    reason: str


def judge_ratios(first: Look, second: Look | None) -> Verdict:
    """Return the answer from the first look and, after an alarm, from the confirming one.

    Args:
        first: of the first rounds.
        second: of the rounds after the first look said slower; None if it did not, or none was made yet.
    """
    if first.state != "slower":
        reason = "the interval lies below the margin" if first.state == "not slower" else _estimate_rounds(first)
        return Verdict(first.state, first, first.rounds, reason)
    if second is None:
        return Verdict("undecided", first, first.rounds, "an alarm that was not checked in new processes")
    rounds = first.rounds + second.rounds
    if second.state == "slower":
        return Verdict("slower", second, rounds, "confirmed in new processes")
    if second.state == "not slower":
        return Verdict("not slower", second, rounds, "a first alarm could not be repeated")
    reason = f"a first alarm is neither confirmed nor refuted; {_estimate_rounds(second)}"
    return Verdict("undecided", second, rounds, reason)


def _estimate_rounds(look: Look) -> str:
    """Return how many more rounds would decide, in words."""
    if look.rounds_needed:
        return f"about {look.rounds_needed} rounds more would decide"
    return f"the ratios so far give no estimate below {MOST_NEEDED} further rounds"
