"""Tests of the numbers that claims print, compared with the published rows that they name."""

import itertools
import re
from collections.abc import Iterator

import pytest

from suite import published
from suite.claims.claim import Claim, load_claims
from suite.published import Row

pytestmark = pytest.mark.quick

CLAIMS = [claim for paper in load_claims().values() for claim in paper.claims]
FIELDS = ("value", "steps", "time_seconds", "epochs")
NUMBER = re.compile(r"(?<![\w.-])(?:\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d{3,})(?![\w-])")
UNITS = (1, 0.01, 0.001, 1000)  # a share of a percentage; thousands; milliseconds


def printed(row: Row) -> Iterator[float]:
    """All numbers of a row, the measured ones also in other units, with those of the time as it is printed."""
    measured = (number for number in (row.value, *row.details.values()) if isinstance(number, int | float))
    yield from (number * unit for number in measured for unit in UNITS)
    yield from (
        float(number) for number in (row.steps, row.time_seconds, row.epochs) if isinstance(number, int | float)
    )
    yield from (float(number) for number in re.findall(r"\d+(?:\.\d+)?", row.time_as_printed or ""))


def derived(rows: list[Row]) -> Iterator[float]:
    """Yield the numbers of rows, inverses of their values, and ratios and differences of one field of two rows."""
    for row in rows:
        yield from printed(row)
        if isinstance(row.value, int | float):
            yield 1 / row.value
    for first, second in itertools.permutations(rows, 2):
        for name in FIELDS:
            one, other = getattr(first, name), getattr(second, name)
            if isinstance(one, int | float) and isinstance(other, int | float):
                yield from (one / other, one - other)


def is_rounded(text: str, number: float) -> bool:
    """Return whether a number, rounded to the digits of the text, is the text."""
    plain = text.replace(",", "")
    return abs(float(plain) - number) <= 0.5 * 10 ** -len(plain.partition(".")[2]) + 1e-9


def rows_of(claim: Claim) -> list[Row]:
    return [published.find_row(id) for id in claim.rows]


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.rows], ids=lambda claim: claim.id)
def test_the_printed_value_of_a_check_follows_from_the_rows(claim: Claim) -> None:
    known = list(derived(rows_of(claim)))
    for check in claim.checks:
        if check.published is not None:
            text = f"{check.published:.10g}"
            assert any(is_rounded(text, number) for number in known), f"{check.name}: {text} is in no row"


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if "(row" in claim.place], ids=lambda claim: claim.id)
def test_the_numbers_beside_the_rows_are_those_of_the_rows(claim: Claim) -> None:
    known = [number for row in rows_of(claim) for number in printed(row)]
    for text in NUMBER.findall(claim.place.partition("(row")[2]):
        assert any(is_rounded(text, number) for number in known), f"{text} is in no row of {claim.rows}"


def test_a_printed_value_lies_in_the_claimed_region() -> None:
    for claim in CLAIMS:
        for check in claim.checks:
            assert check.published is None or check.holds.contains(check.published), (claim.id, check.name)


def test_a_number_that_no_row_prints_is_noticed() -> None:
    rows = [published.find_row("A1-06"), published.find_row("A1-12")]
    assert any(is_rounded("0.50", number) for number in derived(rows))  # 1,760 of 3,519 steps
    assert not any(is_rounded("0.55", number) for number in derived(rows))
    assert NUMBER.findall("(rows A1-06 and A1-12; 1,760 steps, 75.4 %, 45 epochs)") == ["1,760", "75.4"]
