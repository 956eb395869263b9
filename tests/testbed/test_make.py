"""`make testbed` runs what must be right, then the table of all modes, then speed, and fails if any of them has."""

import subprocess
from pathlib import Path

import pytest

from suite import load
from testbed import table

ROOT = Path(__file__).parents[2]
RIGHT, TABLE, SPEED = (
    "-m pytest tests/testbed -m testbed and not bench",
    "tests/testbed/table.py 100mbit 2ms",
    "-m pytest tests/testbed -m testbed and bench",
)


@pytest.mark.parametrize("fails", ["nothing", RIGHT, TABLE, SPEED])
def test_all_of_it_runs_and_what_fails_is_not_forgotten(fails: str, tmp_path: Path) -> None:
    """With a Python that notes what it is asked for."""
    (tmp_path / "bin").mkdir()
    python, noted = tmp_path / "bin" / "python", tmp_path / "noted"
    python.write_text(f'#!/bin/sh\necho "$*" >> {noted}\n[ "$*" != "{fails}" ]\n')
    python.chmod(0o755)
    (tmp_path / ".made").touch()  # the environment stands
    command = ["make", "-C", str(ROOT), "testbed", f"VENV={tmp_path}", "RATE=100mbit", "DELAY=2ms"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert noted.read_text().splitlines() == [RIGHT, TABLE, SPEED], made.stderr
    assert (made.returncode == 0) == (fails == "nothing")


def test_the_table_has_every_mode() -> None:
    assert set(load.list_options("comm")) - set(table.modes()) == {"adaprec", "fastest", "projected"}
