"""Checks of committed claims that are measured by a study."""

from suite.claims.claim import Check, load
from suite.studies.__main__ import call


def check_of(claim: str, name: str) -> Check:
    """A check of a claim in results/claims."""
    claims = {entry.id: entry for paper in load().values() for entry in paper.claims}
    return next(check for check in claims[claim].checks if check.name == name)


def holds(claim: str, name: str, seed: int = 0) -> bool:
    """Whether the value measured for one seed lies in the printed region."""
    check = check_of(claim, name)
    assert check.study
    return check.holds.contains(call(check.study, seed, check.arguments))
