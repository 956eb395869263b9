"""Decides claims from what was measured. docs/claims.md and docs/statistics.md explain the rule.

A check holds if the confidence interval of its quantity lies in the claimed region, and fails if the two have no value
in common. The interval is a confidence sequence: it stays valid however often seeds are added and looked at. Each of
the m checks of a claim uses the error rate 5 % / m, so that a claim is contradicted wrongly in at most 5 % of cases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from suite.claims.claim import Check, Claim, Paper, Region
from suite.claims.evidence import Evidence, Results, collect_evidence, list_missing_seeds, name_differences
from suite.claims.standing import Measured, Pattern, Standing, State, Verdict
from suite.statistics.sequential import MOST_NEEDED, Decision, decide, decide_interval
from suite.statistics.share import share_interval

REASONS: dict[State, str] = {
    "holds": "the whole interval lies in the claimed region",
    "fails": "no value of the interval lies in the claimed region",
    "undecided": "part of the interval lies in the claimed region",
}
VERDICTS: dict[State, Verdict] = {  # from the checks at the published size; one that fails decides
    "fails": "contradicted",
    "out of reach": "out of reach here",
    "not run": "not run",
    "undecided": "undecided",
    "holds": "reproduced",
}
PATTERNS: dict[State, Pattern] = {  # the same from stand-ins
    "fails": "pattern not seen",
    "out of reach": "not run",
    "not run": "not run",
    "undecided": "undecided",
    "holds": "pattern seen",
}
Word = TypeVar("Word", Verdict, Pattern)
FAR = f"; {MOST_NEEDED} seeds more would not decide, were the trend to last"


def judge_check(check: Check, evidence: Sequence[Evidence], *, alpha: float) -> Measured:
    """Return the state of a check.

    Args:
        check: of a claim.
        evidence: what was measured, by seed.
        alpha: error rate of this check.
    """
    values = {item.seed: item.bounds.against(check.holds) for item in evidence}
    best = [item.bounds.in_favour(check.holds) for item in evidence]
    files = tuple(dict.fromkeys(file for item in evidence for file in item.files))
    if not values:
        absent: State = "out of reach" if check.needs else "not run"
        return Measured(check, absent, {}, reason=f"needs {check.needs}" if check.needs else "nothing was measured yet")
    if undefined := [seed for seed, value in values.items() if math.isnan(value)]:
        reason = f"the quantity is undefined for seed {', '.join(map(str, undefined))}, or was timed on a busy machine"
        return Measured(check, "undecided", values, reason=reason, files=files)
    if check.statistic == "exact":
        value = next(iter(values.values()))
        inside = check.holds.contains(value)
        reason = f"computed, {'in' if inside else 'not in'} the claimed region"
        return Measured(check, "holds" if inside else "fails", values, value, value, value, reason=reason, files=files)
    if check.statistic == "share":
        return _share(check, values, files, alpha)
    censored = any(not item.bounds.known or math.isinf(item.bounds.low) for item in evidence)
    unusable = [seed for seed, value in values.items() if value <= 0]
    if check.compare == "ratio" and unusable and not censored:
        reason = f"a ratio of 0 or less has no logarithm: seed {', '.join(map(str, unusable))}"
        return Measured(check, "undecided", values, reason=reason, files=files)
    rule = _Rule(
        check.holds,
        "median" if censored or check.statistic == "median" else "mean",
        alpha,
        log=check.compare == "ratio" and not censored,  # a ratio of 2 is as far from 1 as one of 1/2
        resolution=0.0 if censored else max(item.bounds.resolution for item in evidence),
    )
    worst = rule.decide(list(values.values()))
    state: State = "undecided"
    if worst.state == "inside":
        state = "holds"
    elif rule.decide(best).state == "outside":
        state = "fails"
    seeds_needed = worst.seeds_needed if state == "undecided" else None
    reason = REASONS[state] + ("; of the median, because a target was missed" if censored else "")
    if state == "undecided" and len(values) > 1 and len(set(values.values())) == 1:
        reason += "; all values are equal, which shows no spread: write statistic: exact if no seed matters"
    elif state == "undecided" and len(values) > 1 and seeds_needed is None:
        reason += FAR
    return Measured(check, state, values, worst.estimate, worst.low, worst.high, seeds_needed, reason, files)


@dataclass(frozen=True)
class _Rule:
    """How the values of a check are judged."""

    holds: Region
    statistic: Literal["mean", "median"]
    alpha: float
    log: bool
    resolution: float

    def decide(self, values: list[float]) -> Decision:
        return decide(
            values,
            self.holds.above,
            self.holds.below,
            self.statistic,
            self.alpha,
            log=self.log,
            resolution=self.resolution,
        )


def _share(check: Check, values: Mapping[int, float], files: tuple[str, ...], alpha: float) -> Measured:
    """Return the state of a check of a share."""
    if not set(values.values()) <= {0.0, 1.0}:
        return Measured(check, "undecided", dict(values), reason="a share needs values of 0 and 1", files=files)
    ones, n = sum(value == 1 for value in values.values()), len(values)
    interval = share_interval(ones, n, 2 * alpha)
    state = _decide_share(check.holds, ones, n, alpha)
    reason, needed = REASONS[state], None
    if state == "undecided":
        later = range(n + 1, n + MOST_NEEDED + 1)
        at = next((m for m in later if _decide_share(check.holds, round(ones * m / n), m, alpha) != state), None)
        reason, needed = (reason, at - n) if at else (reason + FAR, None)
    return Measured(check, state, dict(values), ones / n, interval.low, interval.high, needed, reason, files)


def _decide_share(holds: Region, ones: int, n: int, alpha: float) -> State:
    """Return the state of a check with so many ones among its `n` values."""
    interval = share_interval(ones, n, 2 * alpha)
    outer = share_interval(ones, n, alpha) if holds.two_sided else interval
    words: dict[str, State] = {"inside": "holds", "outside": "fails", "undecided": "undecided"}
    return words[decide_interval(interval, outer, *holds.ends)]


def judge_claim(claim: Claim, name: str, paper: Paper, results: Results) -> Standing:
    """Return the verdict on a claim so far.

    Args:
        claim: of the paper.
        name: of the paper's file.
        paper: with the citation.
        results: of the suite and of this directory.
    """
    states: list[Measured] = []
    minutes = 0.0
    for check in claim.checks:
        evidence = collect_evidence(claim, check, results)
        state = judge_check(check, evidence, alpha=claim.divide_error(check))
        remark = name_differences(check, results)
        states.append(replace(state, reason=f"{state.reason}; {remark}") if remark else state)
        if not check.needs and states[-1].state in ("not run", "undecided"):
            count = check.seeds if states[-1].state == "not run" else check.most_seeds
            runs = max(1, len(check.runs))
            minutes += (check.minutes or 0.0) * runs * len(list_missing_seeds(check, evidence, count))
    published: list[State] = [state.state for state in states if state.check.scale == "published"]
    stand_in: list[State] = [state.state for state in states if state.check.scale == "stand-in"]
    verdict, pattern = _sum_up(published, VERDICTS), _sum_up(stand_in, PATTERNS)
    return Standing(claim, name, paper.citation, verdict, pattern, tuple(states), minutes)


def _sum_up(states: Sequence[State], words: Mapping[State, Word]) -> Word | None:
    """Return the word for the first state of the table that a check is in; None without checks."""
    return next((word for state, word in words.items() if state in states), None)
