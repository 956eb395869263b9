"""Results that are committed: each one folds again into itself."""

import conftest
import pytest
from testbed import adaprec

from suite import cli

ROOT = conftest.TESTS.parent
RESULTS = [path for folder in ("runs", "adaprec") for path in sorted((ROOT / "results" / folder).rglob("*.json"))]


def test_numbers_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(RESULTS) > 800
    failed = []
    for path in RESULTS:
        code = cli.main(["verify", "--steps", "0", str(path)])
        printed = capsys.readouterr().out
        if code:
            failed.append(f"{path.relative_to(ROOT)}: {printed}")
    assert not failed, "\n".join(failed)


def test_adaprecs_table_is_what_its_results_say() -> None:
    found = adaprec.rows(ROOT / "results" / "adaprec")
    assert (ROOT / "results" / "adaprec.csv").read_text() == adaprec.table(found)
