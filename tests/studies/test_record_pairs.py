"""The board's rule for pairs of results."""

from pathlib import Path

import pytest
from claimed import check_of

from suite.contract import UserError
from suite.studies import record_pairs

TABLE = (
    "row,steps,record,printed_mean_val_loss,printed_n\n6,3375,no,3.2788,20\n8,3250,yes,3.2778,10\n9,3250,yes,3.2771,8\n"
)
MORE = "11,3225,yes,3.2785,16\n12,3325,no,3.2790,20\n13,3210,yes,3.2785,10\n"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE + MORE)
    return path


def test_two_printed_calculations_follow_and_one_has_the_runs_of_another_row(rows: Path) -> None:
    known = record_pairs.read_rows(rows)
    for name, right in (("row-13", True), ("row-13-8", False), ("row-12", True)):
        check = check_of("jordan2026-calculations", name)
        assert check.holds.contains(record_pairs.measure(0, table=str(rows), **check.arguments)) == right
    assert record_pairs.compare(known[8], {**known[13], "n": known[11]["n"]}) == pytest.approx(0.0027, abs=5e-5)


def test_the_printed_p_values_are_those_of_the_rule(rows: Path) -> None:
    for name in ("row-11", "row-13"):
        check = check_of("jordan2026-p-values", name)
        assert check.holds.contains(record_pairs.measure(0, table=str(rows), **check.arguments))


def test_no_record_of_these_is_separated_from_the_one_before(rows: Path) -> None:
    assert record_pairs.measure(0, quantity="share", table=str(rows)) == 0.0
    rows.write_text(rows.read_text() + "99,2000,yes,3.2785,10\n")
    assert record_pairs.measure(0, quantity="share", table=str(rows)) == 0.25


def test_without_the_table_the_error_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv: absent; set table=FILE"):
        record_pairs.measure(0, quantity="share", table=str(tmp_path / "gone.csv"))
