"""Tests of the committed claims, the command that runs a study, and the example of the page of claims."""

import json
import re
import subprocess
import sys
from textwrap import dedent
from typing import Any

import conftest
import pytest

from suite.claims.claim import Check, load_claims, parse_claims
from suite.studies import __main__ as studies

ROOT = conftest.TESTS.parent
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def checks() -> list[Check]:
    """Return the checks with a study, of all committed claims."""
    entries = [claim for paper in load_claims().values() for claim in paper.claims]
    return [check for claim in entries for check in claim.checks if check.study]


def block(language: str) -> str:
    """Return the first indented block of the page in a language."""
    match = re.search(rf"^ *```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    assert match
    return dedent(match[1])


def test_no_study_is_unused() -> None:
    assert {check.study for check in checks()} == studies.names()


def test_the_studies_of_all_claims_take_less_than_twelve_minutes() -> None:
    assert sum((check.minutes or 0) * check.seeds for check in checks()) < 12


def test_the_example_on_the_page_is_a_claim_that_holds() -> None:
    (claim,) = parse_claims(block("yaml"), "example.yaml").claims
    namespace: dict[str, Any] = {}
    exec(block("python"), namespace)
    assert [check.name for check in claim.checks] == ["cycle", "gradient"]
    for check in claim.checks:
        assert check.study == "heavy-ball"
        value = namespace["measure"](0, **check.arguments)
        assert check.holds.contains(value)
        assert value == studies.call(check.study, 0, check.arguments)


def test_the_command_prints_one_line_of_json() -> None:
    command = [sys.executable, "-m", "suite.studies", "root-bits", "0", "quantity=formula", "condition=1e6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == {"value": pytest.approx(17.93, abs=0.01)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["root-bit", "0"], "root-bit: no such study; did you mean root-bits"),
        (["root-bits"], "usage: python -m suite.studies NAME SEED"),
        (["root-bits", "one"], "one: the seed must be a whole number"),
        (["root-bits", "0", "quantity"], "quantity: write an argument as key=value"),
        (["root-bits", "0"], "root-bits: quantity is missing; add quantity=VALUE"),
        (["root-bits", "0", "quantity=formula", "ordr=2"], "root-bits: no argument ordr; did you mean order"),
        (["root-bits", "0", "quantity=formula", "order=two"], "root-bits: order=two: "),
        (["root-bits", "0", "quantity=nonsense"], "root-bits: quantity=nonsense: "),
    ],
)
def test_wrong_words_are_explained(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert studies.main(words) == 2
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out


def test_a_value_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="the value is inf"):
        studies.call("root-bits", 0, {"quantity": "formula", "condition": float("inf")})
