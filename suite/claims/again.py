"""Measures the committed values of claims again, and compares (`suite reproduce CLAIM --again`).

Every seed with a committed value runs again, whatever this directory contains. New values go to `runs/`; only `--keep`
writes into the suite's own results.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.claims.claim import Check, Claim, select_claims
from suite.claims.evidence import Evidence, Results, collect_evidence, find_committed
from suite.claims.runs import Budget, StopError, estimate_minutes, format_duration, run_check
from suite.claims.standing import Measured
from suite.claims.table import format_number
from suite.claims.verdict import judge_check

ROUNDING = 1e-9  # relative: what another processor or library may change in a float64


@dataclass(frozen=True)
class Repeated:
    """A check with its committed values, and the values of the same seeds measured again."""

    claim: str
    before: Measured
    again: Measured

    @property
    def agrees(self) -> bool:
        """Return whether the new values give the check the same state as the committed ones."""
        return self.before.state == self.again.state


@dataclass
class Repetition:
    """A repeated measurement.

    Attributes:
        checks: those that were compared.
        absent: names of the checks without a committed value.
        skipped: names of the checks that need data, or more time than the budget.
        code: 0, 1 if a run failed, 129, 130 or 143 if interrupted.
    """

    checks: list[Repeated] = field(default_factory=list[Repeated])
    absent: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])
    code: int = 0


def repeat_claims(
    names: Sequence[str], overrides: Sequence[str], budget: Budget, *, scale: str | None, keep: bool, quiet: bool
) -> Repetition:
    """Measure again what is committed for claims, the cheapest check first.

    Args:
        names: claims and papers; none means all.
        overrides: added to every run, such as data_dir=….
        budget: nothing is started that would exceed it.
        scale: only the checks of this size.
        keep: write the new values into the suite's own results.
        quiet: print no progress.

    Raises:
        UserError: if a name is unknown, or a run is rejected.
    """
    done = Repetition()
    results = Results([find_committed()])
    planned: list[tuple[Claim, Check, list[Evidence]]] = []
    for _, _, claim in select_claims(names):
        for check in claim.checks:
            if scale not in (None, check.scale):
                continue
            values = collect_evidence(claim, check, results)
            if not values:
                done.absent.append(_name(claim, check))
            elif check.needs and not overrides:
                done.skipped.append(_name(claim, check))
            else:
                planned.append((claim, check, values))
    for claim, check, values in sorted(planned, key=lambda item: estimate_minutes(item[1]) * len(item[2])):
        try:
            _repeat(claim, check, values, overrides, budget, done, keep=keep, quiet=quiet)
        except StopError as stopped:
            done.code = stopped.code
            break
    return done


def _repeat(
    claim: Claim,
    check: Check,
    values: Sequence[Evidence],
    overrides: Sequence[str],
    budget: Budget,
    done: Repetition,
    *,
    keep: bool,
    quiet: bool,
) -> None:
    """Measure the seeds of one check again, and add the comparison to what was done."""
    folders: list[Path] = []
    seeds: set[int] = set()
    for seed in (item.seed for item in values):
        if not budget.allows(estimate_minutes(check)):
            break
        if not quiet:
            print(f"{_name(claim, check)} · seed {seed}, {format_duration(check)}", flush=True)
        new = run_check(claim, check, seed, [*overrides, "force=true"], keep=keep)
        if new is None:
            done.code = 1
            continue
        folders += new
        seeds.add(seed)
    again = [item for item in collect_evidence(claim, check, Results(folders)) if item.seed in seeds]
    if not again:
        done.skipped.append(_name(claim, check))
        return
    before = [item for item in values if item.seed in {item.seed for item in again}]
    alpha = claim.divide_error(check)
    done.checks.append(
        Repeated(claim.id, judge_check(check, before, alpha=alpha), judge_check(check, again, alpha=alpha))
    )


def _name(claim: Claim, check: Check) -> str:
    return f"{claim.id} · {check.name}"


def show_repetition(done: Repetition) -> None:
    """Print the comparison of each check, and how many agree."""
    for one in done.checks:
        check = one.before.check
        print(f"{one.claim} · {check.name}: {check.quantity}; claimed {check.holds}")
        for seed, before in one.before.values.items():
            again = one.again.values[seed]
            print(
                f"  seed {seed}: committed {format_number(before)}, again {format_number(again)}"
                f"{_difference(before, again)}"
            )
        states = f"{one.before.state} with the committed values, {one.again.state} with the new ones"
        print(f"  {'agrees' if one.agrees else 'DISAGREES'}: {states}")
    for reason, names in (("no committed value", done.absent), ("not measured", done.skipped)):
        if names:
            print(f"{reason}: {', '.join(names)}")
    agreeing = sum(one.agrees for one in done.checks)
    print(f"{agreeing} of {len(done.checks)} checks agree with their committed values")


def _difference(before: float, again: float) -> str:
    if before == again:
        return " (equal)"
    share = abs(before - again) / max(abs(before), abs(again))
    if not math.isfinite(share):
        return " (differs)"
    return " (equal up to rounding)" if share <= ROUNDING else f" (differs by {100 * share:.2g} %)"


def format_repetition(done: Repetition) -> dict[str, Any]:
    """Return the comparison for JSON."""
    checks = [
        {
            "claim": one.claim,
            "check": one.before.check.name,
            "agrees": one.agrees,
            "committed": {"state": one.before.state, "values": one.before.values},
            "again": {"state": one.again.state, "values": one.again.values, "files": one.again.files},
        }
        for one in done.checks
    ]
    return {"checks": checks, "absent": done.absent, "skipped": done.skipped}
