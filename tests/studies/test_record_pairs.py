"""Tests of the board's rule for pairs of results."""

import pytest
from claimed import check_of

from suite.studies import record_pairs


def test_two_printed_calculations_follow_and_one_has_the_runs_of_another_row() -> None:
    for name, right in (("row-13", True), ("row-13-8", False), ("row-12", True)):
        check = check_of("jordan2026-calculations", name)
        assert check.holds.contains(record_pairs.measure(0, **check.arguments)) == right
    rows = record_pairs.RECORDS | record_pairs.OTHERS
    mixed = rows[13]._replace(runs=rows[11].runs)
    assert record_pairs.compare(rows[8], mixed) == pytest.approx(0.0027, abs=5e-5)


def test_the_printed_p_values_are_those_of_the_rule() -> None:
    for name in ("row-11", "row-13", "row-16", "row-34"):
        check = check_of("jordan2026-p-values", name)
        assert check.holds.contains(record_pairs.measure(0, **check.arguments))


def test_eight_records_are_separated_from_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert record_pairs.measure(0, quantity="share") == 8 / 19
    two = {1: record_pairs.Row(3600, 3.28, 10), 2: record_pairs.Row(2000, 3.28, 10)}
    monkeypatch.setattr(record_pairs, "RECORDS", two)
    assert record_pairs.measure(0, quantity="share") == 1.0
