"""What is known about all claims, or about those that a run bears on."""

from collections.abc import Mapping, Sequence
from typing import Any

from suite.claims.claim import load, select
from suite.claims.evidence import CHOICES, Results, matches, measured_settings, might_be, typed, wanted_settings
from suite.claims.standing import Standing
from suite.claims.verdict import standing


def standings(names: Sequence[str] = ()) -> list[Standing]:
    """The standing of every claim, or of the named claims, papers and files, in the order of the files.

    Raises:
        UserError: if a name is none of these, or a file of claims is malformed.
    """
    results = Results()
    return [standing(claim, name, paper, results) for name, paper, claim in select(names)]


def bearing_on(result: Mapping[str, Any]) -> list[str]:
    """The ids of the claims for which a run counts, whatever its seed."""
    return [
        claim.id
        for paper in load().values()
        for claim in paper.claims
        if any(_counts(overrides, result) for check in claim.checks for overrides in check.runs.values())
    ]


def _counts(overrides: str, result: Mapping[str, Any]) -> bool:
    """Whether a result is of the run with these overrides. Its command tells most cases apart in less time."""
    words, decisive = typed(overrides), measured_settings(result)
    others = set(typed(result["command"].removeprefix("suite "))) - set(words)
    return (
        not any(key in decisive or key in CHOICES for key in others)
        and might_be(words, result)
        and matches(wanted_settings(overrides), result)
    )


def sentences(result: Mapping[str, Any]) -> list[str]:
    """A line for each claim that a run bears on: what is known about the claim so far."""
    names = bearing_on(result)
    lines = []
    for one in standings(names) if names else []:
        known = [*([one.verdict] if one.verdict else []), *([f"stand-in {one.pattern}"] if one.pattern else [])]
        lines.append(f"Claim {one.claim.id}, so far {', '.join(known)}: suite reproduce {one.claim.id}")
    return lines
