"""Results that are committed: each one folds again into itself."""

from pathlib import Path
from typing import Any

import conftest
import ladders
import pytest
from testbed import adaprec

from suite import cli

ROOT = conftest.TESTS.parent
RESULTS = [path for folder in ("runs", "adaprec") for path in sorted((ROOT / "results" / folder).rglob("*.json"))]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_numbers_agree(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["verify", "--steps", "0", str(path)])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("name, table", [("ladders", ladders.table), ("modes", ladders.modes)])
def test_the_tables_are_what_the_results_say(name: str, table: Any) -> None:
    assert (ROOT / "results" / f"{name}.csv").read_text() == table(ladders.committed()), "type make ladders"


def test_adaprecs_table_is_what_its_results_say() -> None:
    found = adaprec.rows(ROOT / "results" / "adaprec")
    assert (ROOT / "results" / "adaprec.csv").read_text() == adaprec.table(found)
