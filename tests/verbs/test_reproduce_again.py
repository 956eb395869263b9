"""`suite reproduce --again`: committed values are measured again and compared; nothing committed changes."""

import json
import shutil
from pathlib import Path

import pytest
from claimed import CLAIMS

from suite.claims import again, evidence, runs
from suite.contract import UserError
from suite.verbs import reproduce

STUDY = "lessard2016-heavy-ball-cycle"


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of committed results with one claim's values; the working directory is beside it."""
    folder = tmp_path / "results"
    shutil.copytree(evidence.find_committed() / "studies" / STUDY, folder / "studies" / STUDY)
    for module in (evidence, runs, again):
        monkeypatch.setattr(module, "find_committed", lambda: folder)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def changed(folder: Path) -> Path:
    """Change a committed value, so that it no longer is what its study gives."""
    path = folder / "studies" / STUDY / "cycle-s0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": 0.01}))
    return path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.json")}


def test_equal_values_agree_and_only_runs_is_written(committed, capsys):
    before = contents(committed)
    assert reproduce.main([STUDY, "--again"]) == 0
    printed = capsys.readouterr().out
    assert "seed 0: committed 0.6465, again 0.6465 (equal)" in printed
    assert "2 of 2 checks agree" in printed
    assert contents(committed) == before
    assert {path.name for path in Path("runs").rglob("*.json")} == {"cycle-s0.json", "gradient-s0.json"}


def test_a_value_of_this_directory_does_not_replace_the_measurement(committed, capsys):
    shutil.copytree(committed / "studies", "runs/studies")
    changed(Path("runs"))
    assert reproduce.main([STUDY, "--again"]) == 0
    assert "committed 0.6465, again 0.6465 (equal)" in capsys.readouterr().out


def test_a_value_that_changes_the_state_disagrees_and_is_replaced_only_with_keep(committed, capsys):
    path = changed(committed)
    before = contents(committed)
    assert reproduce.main([STUDY, "--again"]) == 1
    printed = capsys.readouterr().out
    assert "committed 0.01, again 0.6465 (differs by 98 %)" in printed
    assert "DISAGREES: fails with the committed values, holds with the new ones" in printed
    assert "1 of 2 checks agree" in printed and contents(committed) == before
    assert reproduce.main([STUDY, "--again", "--keep", "--json"]) == 1
    (cycle, gradient) = json.loads(capsys.readouterr().out)["checks"]
    assert (cycle["agrees"], gradient["agrees"]) == (False, True)
    assert cycle["committed"]["values"] == {"0": 0.01} and cycle["again"]["state"] == "holds"
    assert json.loads(path.read_text())["value"] == pytest.approx(0.64653, abs=1e-5)


@pytest.mark.slow
def test_a_run_is_made_again_and_kept_beside_the_committed_one(committed, capsys):
    Path("mine.yaml").write_text(CLAIMS)
    assert reproduce.main(["mine.yaml", "--again"]) == 0
    assert "no committed value: mine-steps · steps" in capsys.readouterr().out and not Path("runs").exists()
    assert reproduce.main(["mine.yaml", "--keep", "--json"]) == 0
    before = contents(committed)
    assert sum("runs" in path.parts for path in before) == 1
    capsys.readouterr()
    assert reproduce.main(["mine.yaml", "--again"]) == 0
    assert "seed 3: committed 4, again 4 (equal)" in capsys.readouterr().out
    assert len(list(Path("runs").glob("*/*/result.json"))) == 2 and contents(committed) == before
    assert reproduce.main(["mine.yaml", "--again", "--keep"]) == 0
    after = contents(committed)
    assert before.items() <= after.items() and len(after) == len(before) + 1


def test_nothing_starts_beyond_the_budget(committed, capsys):
    assert reproduce.main([STUDY, "--again", "--budget", "0.1s"]) == 0
    assert f"not measured: {STUDY} · cycle, {STUDY} · gradient" in capsys.readouterr().out
    assert not Path("runs").exists()


def test_again_excludes_list(committed):
    with pytest.raises(UserError, match="--again measures and --list does not"):
        reproduce.main([STUDY, "--again", "--list"])
