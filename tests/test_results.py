"""Results that are committed: each one folds again into itself."""

from pathlib import Path

import conftest
import ladders
import pytest

from suite import cli

ROOT = conftest.TESTS.parent
RESULTS = sorted((ROOT / "results" / "runs").rglob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_numbers_agree(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["verify", "--steps", "0", str(path)])
    assert code == 0, capsys.readouterr().out


def test_the_table_of_ladders_is_what_the_results_say() -> None:
    assert (ROOT / "results" / "ladders.csv").read_text() == ladders.table(ladders.committed()), "type make ladders"
