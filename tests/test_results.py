"""Results that are committed: each one folds again into itself, and was made by a commit that is here."""

import json
import subprocess
from pathlib import Path

import conftest
import pytest

from suite import cli

ROOT = conftest.TESTS.parent
RESULTS = sorted((ROOT / "results" / "runs").rglob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_numbers_agree(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["verify", "--steps", "0", str(path)])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_its_commit_is_here(path: Path) -> None:
    commit = json.loads(path.read_text())["environment"]["commit"]
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.returncode or shallow.stdout.strip() == "true":
        pytest.skip("no whole history here")
    assert subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT).returncode == 0, commit
