"""Standings of all claims, or of those that a run bears on."""

from collections.abc import Sequence

from suite.claims.claim import load_claims, select_claims
from suite.claims.evidence import (
    CHOICES,
    Results,
    is_of_run,
    may_be_of_run,
    parse_overrides,
    resolve_decisive,
    select_decisive,
)
from suite.claims.standing import Standing
from suite.claims.verdict import judge_claim
from suite.record.result import Result


def list_standings(names: Sequence[str] = ()) -> list[Standing]:
    """List the standing of every claim, or of the named claims, papers and files, in the order of the files.

    Raises:
        UserError: if a name is none of these, or a file of claims is malformed.
    """
    results = Results()
    return [judge_claim(claim, name, paper, results) for name, paper, claim in select_claims(names)]


def list_bearing(result: Result) -> list[str]:
    """List the ids of the claims for which a run counts, whatever its seed."""
    return [
        claim.id
        for paper in load_claims().values()
        for claim in paper.claims
        if any(_counts(overrides, result) for check in claim.checks for overrides in check.runs.values())
    ]


def _counts(overrides: str, result: Result) -> bool:
    """Return whether a result is of the run with these overrides. Its command tells most cases apart in less time."""
    words, decisive = parse_overrides(overrides), select_decisive(result)
    others = set(parse_overrides(result.command.removeprefix("suite "))) - set(words)
    return (
        not any(key in decisive or key in CHOICES for key in others)
        and may_be_of_run(words, result)
        and is_of_run(resolve_decisive(overrides), result)
    )


def describe_bearing(result: Result) -> list[str]:
    """A line for each claim that a run bears on: what is known about the claim so far."""
    names = list_bearing(result)
    lines: list[str] = []
    for one in list_standings(names) if names else []:
        known = [*([one.verdict] if one.verdict else []), *([f"stand-in {one.pattern}"] if one.pattern else [])]
        lines.append(f"Claim {one.claim.id}, so far {', '.join(known)}: suite reproduce {one.claim.id}")
    return lines
