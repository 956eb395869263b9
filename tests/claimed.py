"""Checks of committed claims that are measured by a study, and a user's own file of claims."""

from suite.claims.claim import Check, load_claims
from suite.studies.__main__ import call

RUN = "+task=resnet50 optimizer=sgd max_steps=4 eval_every=2 stop_at_target=false task.batch_size=32 threads=1"
CLAIMS = f"""
citation: 'Someone: Something, 2026'
claims:
- id: mine-steps
  statement: A run of four steps makes four steps.
  place: page 1
  checks:
  - name: steps
    scale: stand-in
    stands_for: a test
    quantity: steps
    runs: {{sgd: {RUN}}}
    measure: {{field: steps}}
    statistic: exact
    holds: {{above: 3.5, below: 4.5}}
    minutes: 0.2
"""


def check_of(claim: str, name: str) -> Check:
    """A check of a claim in results/claims."""
    claims = {entry.id: entry for paper in load_claims().values() for entry in paper.claims}
    return next(check for check in claims[claim].checks if check.name == name)


def holds(claim: str, name: str, seed: int = 0) -> bool:
    """Return whether the value measured for one seed lies in the printed region."""
    check = check_of(claim, name)
    assert check.study
    return check.holds.contains(call(check.study, seed, check.arguments))
