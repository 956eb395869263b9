"""Runs go to a server and come back as they were."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from stored import cut, result_of

from suite import published
from suite.contract import UserError
from suite.track import mlflow, server
from suite.track.pull import pull_runs
from suite.verbs import sync

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # MLflow's own


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine published rows instead of two hundred, which would take three seconds; one has no number."""
    rows = [row for row in published.find_rows("resnet50") if row.table in ("C1", "I3")][:9]
    assert [isinstance(row.value, str) for row in rows].count(True) == 5
    monkeypatch.setattr(published, "find_rows", lambda task: rows)


def test_sync_and_pull_round_trip(store: Path, run: Path, few_rows: None, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, "runs/resnet50/b")
    cut(Path("runs/resnet50/b"), 10)
    header = json.loads(Path("runs/resnet50/b/header.json").read_text())
    Path("runs/resnet50/b/header.json").write_text(json.dumps(header | {"execution_id": 32 * "b"}))
    assert sync.main([]) == 0
    assert sync.main(["runs"]) == 0
    sent, again = [line for line in capsys.readouterr().out.splitlines() if " sent, " in line]
    assert sent == "2 sent, 0 already there, 0 left out, 4 published rows added"
    assert again == "0 sent, 2 already there, 0 left out, 0 published rows added"

    assert sync.main(["--pull", f"sqlite:///{store}", "--out", "pulled"]) == 0
    (pulled,) = Path("pulled/resnet50").iterdir()
    assert pulled.name == result_of(run)["hash"], "and the unfinished run is left where it is"
    for file in pulled.iterdir():
        assert file.read_bytes() == (run / file.name).read_bytes()
    assert {file.name for file in pulled.iterdir()} == {"config.yaml", "header.json", "events.jsonl", "result.json"}
    printed = capsys.readouterr().out
    assert (
        " has no result (" in printed and "2 runs read: 1 written, 0 already there, 1 left out, 0 rejected" in printed
    )
    assert sync.main(["pulled"]) == 0
    assert "0 sent, 1 already there" in capsys.readouterr().out
    outcomes = [outcome.partition(":")[0] for _, outcome in pull_runs(Path("pulled"))]
    assert sorted(outcomes) == ["left out", "there"]


def test_a_run_with_the_execution_of_another_or_without_a_tag_is_rejected(store: Path, run: Path) -> None:
    """Equal copies are one run. One that is gone is seen by the number of runs alone."""
    run_id = mlflow.send_run(run)
    ((pulled, outcome),) = pull_runs(Path("pulled"))
    assert outcome == "written"
    events = pulled / "events.jsonl"
    events.write_text(events.read_text() + "\n")
    ((_, outcome),) = pull_runs(Path("pulled"))
    assert outcome.startswith(f"rejected: MLflow run {run_id}: the execution ")
    assert outcome.endswith(f"is in {pulled}, but with another events.jsonl")
    with server.connect_client() as client:  # the parent of a sweep is no run
        client.create_run(client.get_run(run_id).info.experiment_id, tags={"published": "false", "sweep": "0123"})
    for name in ("execution_id", "hash", "task"):
        with server.connect_client() as client:
            client.delete_tag(run_id, name)
        ((_, outcome),) = pull_runs(Path("others"))
        assert outcome == f"rejected: MLflow run {run_id}: has no tag {name}"


def test_pull_overwrites_nothing(store: Path, run: Path) -> None:
    mlflow.send_run(run)
    other = Path("pulled/resnet50") / result_of(run)["hash"]
    shutil.copytree(run, other)
    (other / "header.json").write_text('{"execution_id": "another"}')
    assert list(pull_runs(Path("pulled"))) == [(other.with_name(other.name + ".2"), "written")]
    assert (other / "header.json").read_text() == '{"execution_id": "another"}'


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "config.yaml"])
def test_a_tampered_artifact_is_refused(store: Path, run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    mlflow.send_run(run)
    (file,) = Path("mlruns").rglob(name)
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    assert sync.main(["--pull", f"sqlite:///{store}", "--out", "pulled"]) == 1
    assert f"{name}: not the file that was sent" in capsys.readouterr().err
    assert not list(Path("pulled").rglob("result.json"))


def test_a_result_of_another_run_is_refused(store: Path, run: Path) -> None:
    """Even when its digest was changed along with it."""
    run_id, result = mlflow.send_run(run), result_of(run)
    result["spec"]["config"]["optimizer"]["lr"] = 1.0
    (file,) = Path("mlruns").rglob("result.json")
    file.write_text(json.dumps(result))
    with server.connect_client() as client:
        client.set_tag(run_id, "sha256/result.json", hashlib.sha256(file.read_bytes()).hexdigest())
    ((_, outcome),) = pull_runs(Path("pulled"))
    assert "belongs to another run" in outcome


def test_sync_names_what_it_leaves_out(
    store: Path, run: Path, few_rows: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, "runs/empty")
    Path("runs/empty/events.jsonl").unlink()
    assert sync.main([]) == 1
    captured = capsys.readouterr()
    assert "runs/empty: training has not started" in captured.err
    assert "1 sent, 0 already there, 1 left out" in captured.out


def test_sync_without_runs_says_what_to_type(store: Path) -> None:
    with pytest.raises(UserError, match="suite sync DIR"):
        sync.main(["nowhere"])
    with pytest.raises(UserError, match="run a second command without --pull"):
        sync.main(["runs", "--pull", "sqlite:///mlflow.db"])
