"""The console, and MLflow as a view of run directories."""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite import published, record
from suite.contract import Data, Evaluated, Finished, Started, Step, Target, UserError
from suite.track import closing, mlflow, picture, server, sweep
from suite.track.console import Console, patience, printer
from suite.track.pull import pull
from suite.verbs import sync

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # MLflow's own


# ------------------------------------------------------------------------------------------------ fixtures
@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps that reaches the first of its two targets."""
    folder = tmp_path_factory.mktemp("made")
    overrides = ["+task=resnet50", "max_steps=20", "eval_every=5", "task.targets=[5,99]", "threads=1", "track=none"]
    command = [sys.executable, "-m", "suite", *overrides, f"run_dir={folder / 'run'}"]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True)
    return folder / "run"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, which take a second and a half to make."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with server.connected(f"sqlite:///{path}"):
        return path


@pytest.fixture
def store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which MLFLOW_TRACKING_URI names, in the current directory."""
    path = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "resnet50" / "a"))


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def query(store: Path, sql: str) -> list[Any]:
    with sqlite3.connect(store) as database:
        return database.execute(sql).fetchall()


def history(run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Every metric of a run as (step, value), by key."""
    with server.connected() as client:
        keys = client.get_run(run_id).data.metrics
        return {key: sorted((m.step, m.value) for m in client.get_metric_history(run_id, key)) for key in keys}


def tags(run_id: str) -> dict[str, str]:
    with server.connected() as client:
        return client.get_run(run_id).data.tags


def status(run_id: str) -> str:
    with server.connected() as client:
        return client.get_run(run_id).info.status


def cut(run: Path, step: int, *, seconds: float = 0.0) -> None:
    """Make it a run that was interrupted after `step` steps, or one that took longer."""
    kept = []
    for event in record.read_events(run / "events.jsonl"):
        if event["event"] in ("step", "evaluated"):
            event["train_seconds"] += seconds
        if event["event"] == "started" or (event["event"] != "finished" and event["step"] <= step):
            kept.append(event)
    kept.append({"event": "finished", "step": step, "outcome": {"kind": "interrupted"}, "facts": kept[0]["facts"]})
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
    (run / "result.json").unlink()


def artifacts(run_id: str, into: Path) -> dict[str, bytes]:
    with server.connected() as client:
        folder = Path(client.download_artifacts(run_id, "", str(into)))
        return {file.name: file.read_bytes() for file in folder.iterdir()}


# -------------------------------------------------------------------------------------------------- MLflow
def test_a_second_send_adds_nothing(store: Path, run: Path) -> None:
    first = mlflow.send(run)
    counts = [query(store, f"select count(*) from {table}") for table in ("runs", "metrics", "params", "tags")]
    assert mlflow.send(run) == first
    assert [query(store, f"select count(*) from {table}") for table in ("runs", "metrics", "params", "tags")] == counts


def test_names_parameters_and_tags(store: Path, run: Path) -> None:
    run_id, result = mlflow.send(run), result_of(run)
    assert query(store, "select name from experiments where experiment_id > 0") == [
        ("resnet50/laptop/scikit-learn digits",)
    ]
    with server.connected() as client:
        sent = client.get_run(run_id)
    assert sent.info.run_name == "sgd·float32·torch·s0"
    assert sent.info.status == "FINISHED"
    assert sent.data.params["optimizer.lr"] == json.dumps(result["spec"]["config"]["optimizer"]["lr"])
    assert sent.data.params["task.targets"] == "[5, 99]"
    expected = {
        "execution_id": result["execution_id"],
        "hash": result["hash"],
        "optimizer": "sgd",
        "backend": "torch",
        "comm": "float32",
        "device": "cpu",
        "outcome": "exhausted",
        "data": result["data"]["label"],
        "suite": result["environment"]["suite"],
    }
    assert expected.items() <= sent.data.tags.items()


def test_metrics_are_the_run_s_own(store: Path, run: Path) -> None:
    sent, result = history(mlflow.send(run)), result_of(run)
    events = record.read_events(run / "events.jsonl")
    steps = [event for event in events if event["event"] == "step"]
    assert sent["train/loss"] == [(event["step"], event["loss"]) for event in steps]
    assert sent["hyper/lr"] == [(event["step"], event["hyper"]["lr"]) for event in steps]
    assert sent["valid/top1"] == [(point["step"], point["metrics"]["top1"]) for point in result["curve"]]
    by_time = [(round(1000 * point["train_seconds"]), point["metrics"]["top1"]) for point in result["curve"]]
    assert sent["by_millisecond/valid/top1"] == by_time
    assert sent["step_seconds/p99"] == [(20, result["step_seconds"]["p99"])]


def test_time_to_target_equals_the_result(store: Path, run: Path) -> None:
    sent, (easy, hard) = history(mlflow.send(run)), result_of(run)["targets"]
    assert easy["reached"] and not hard["reached"]
    step = easy["step"]
    assert sent["time_to/top1_5/seconds"] == [(step, easy["train_seconds"])]
    assert sent["time_to/top1_5/steps"] == [(step, step)]
    assert sent["time_to/top1_5/samples"] == [(step, easy["samples"])]
    assert not any(key.startswith("time_to/top1_99") for key in sent)


def test_artifacts_are_the_files(store: Path, run: Path, tmp_path: Path) -> None:
    run_id = mlflow.send(run)
    files = artifacts(run_id, tmp_path / "down")
    assert set(files) == {"config.yaml", "header.json", "events.jsonl", "result.json", "curve.svg"}
    for name in set(files) - {"curve.svg"}:
        assert files[name] == (run / name).read_bytes()
        assert tags(run_id)[f"sha256/{name}"] == hashlib.sha256(files[name]).hexdigest()


def test_an_interrupted_run_is_continued(
    store: Path, run: Path, made: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    cut(run, 10)
    run_id = mlflow.send(run)
    assert status(run_id) == "KILLED"
    assert [step for step, _ in history(run_id)["train/loss"]] == list(range(1, 11))
    shutil.copytree(made, run, dirs_exist_ok=True)
    steps: list[int] = []
    log_batch = MlflowClient.log_batch

    def spy(self: MlflowClient, run_id: str, metrics: Any = (), **others: Any) -> Any:
        steps.extend(metric.step for metric in metrics if metric.key == "train/loss")
        return log_batch(self, run_id, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", spy)
    assert mlflow.send(run) == run_id
    assert steps == list(range(11, 21)), "only what was missing is sent"
    assert status(run_id) == "FINISHED"
    continued = history(run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(empty_store, store.with_name('other.db'))}")
    assert history(mlflow.send(run)) == continued


def test_a_run_cut_back_to_its_checkpoint_is_sent_anew(store: Path, run: Path, made: Path) -> None:
    """Points that the log no longer holds cannot be taken out of an MLflow run."""
    cut(run, 10, seconds=1.0)
    old = mlflow.send(run, parent="someone")
    shutil.copytree(made, run, dirs_exist_ok=True)
    new = mlflow.send(run)
    assert new != old
    assert query(store, "select run_uuid from runs where lifecycle_stage = 'active'") == [(new,)]
    assert tags(new)["mlflow.parentRunId"] == "someone"


def test_a_run_is_running_while_its_directory_is_locked(store: Path, run: Path) -> None:
    import fcntl

    cut(run, 10)
    log = run / "events.jsonl"
    whole = log.read_text()
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
        run_id = mlflow.send(run)
        assert (status(run_id), tags(run_id)["outcome"]) == ("RUNNING", "running")
        log.write_text(whole)
        assert mlflow.send(run) == run_id
        assert (status(run_id), tags(run_id)["outcome"]) == ("KILLED", "interrupted")
        log.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    mlflow.send(run)
    assert (status(run_id), tags(run_id)["outcome"]) == ("KILLED", "killed")


def test_a_directory_without_events_is_refused(store: Path, run: Path) -> None:
    (run / "events.jsonl").write_text("")
    with pytest.raises(UserError, match="training has not begun"):
        mlflow.send(run)


def test_an_unfinished_run_of_an_older_version_is_refused(store: Path, run: Path) -> None:
    cut(run, 10)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("task:\n", "task:\n  forgotten_option: 1\n"))
    with pytest.raises(UserError, match=r"a: unfinished, and its task cannot be made here: .*forgotten_option"):
        mlflow.send(run)


def test_finish_adds_the_rows_beside_the_run_once(store: Path, run: Path) -> None:
    config = result_of(run)["spec"]["config"]
    assert mlflow.finish(config, run) is None, "track=none"
    assert query(store, "select count(*) from runs") == [(0,)]
    config["track"] = {"name": "mlflow"}
    mlflow.finish(config, run)
    mlflow.finish(config, run)
    rows = query(store, "select value from tags where key = 'row'")
    chosen = closing.choose(published.rows_for("resnet50"), optimizer="sgd", batch_size=64)
    assert sorted(id for (id,) in rows) == sorted(row.id for row in chosen)


def test_a_published_row_keeps_its_numbers(store: Path) -> None:
    row = published.row("A1-12")
    with server.connected() as client:
        where = server.experiment(client, "x")
        assert mlflow.publish(client, where, [row]) == 1
        client.set_experiment_tag(where, mlflow.ROWS, "")  # as if ended before the tag was set
        assert mlflow.publish(client, where, [row]) == 0
        (sent,) = client.search_runs([where], "tags.published = 'true' and tags.row = 'A1-12'")
    assert sent.data.metrics["published/value"] == row.value
    assert sent.data.metrics["published/time_seconds"] == row.time_seconds
    assert sent.data.params["published.optimizer"] == "SP-NGD"


def test_a_sweep_has_a_parent(store: Path, run: Path) -> None:
    config = result_of(run)["spec"]["config"]
    parent, child = mlflow.parent_run("sweep", config=config), mlflow.send(run)
    assert mlflow.send(run, parent=parent) == child
    assert tags(child)["mlflow.parentRunId"] == parent
    assert len(query(store, "select distinct experiment_id from runs")) == 1


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_dead_server_is_one_line_soon(store: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{closed_port()}")
    before, start = dict(os.environ), time.monotonic()
    with pytest.raises(UserError) as error:
        mlflow.send(run)
    assert time.monotonic() - start < 5  # MLflow itself tries for minutes
    assert re.search(r"refused.*suite sync", str(error.value))
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
    assert dict(os.environ) == before


def test_a_silent_server_is_given_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server.KNOCK, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent, pytest.raises(UserError, match="timed out"):
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mlflow.send(run, uri=f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_database_that_cannot_be_opened_is_given_up(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unable to open database"):
        mlflow.send(run, uri=f"sqlite:///{tmp_path}/nowhere/mlflow.db")


def test_the_environment_is_left_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    before = dict(os.environ)
    with server.connected():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77", "the user's own setting holds"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert dict(os.environ) == before


def test_where_mlflow_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert server.address() == "sqlite:///mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking")
    assert server.address() == "http://tracking"
    assert server.address("http://other") == "http://other"
    assert server.how_to_open("postgresql://me:secret@host/db").endswith("postgresql://me:***@host/db'")


def test_the_picture_depends_on_the_run_alone(made: Path) -> None:
    result, events = result_of(made), record.read_events(made / "events.jsonl")
    first, second = (picture.curve(result, events, title="x") for _ in range(2))
    assert first == second
    assert b"dc:date" not in first
    result["targets"] = []
    assert picture.curve(result, events, title="x") != first, "the targets are drawn"


# -------------------------------------------------------------------------------------------------- sync
@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine published rows instead of two hundred, which would take three seconds; one has no number."""
    rows = [row for row in published.rows_for("resnet50") if row.table in ("C1", "I3")][:9]
    assert [isinstance(row.value, str) for row in rows].count(True) == 5
    monkeypatch.setattr(published, "rows_for", lambda task: rows)


def test_sync_and_pull_round_trip(store: Path, run: Path, few_rows: None, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, "runs/resnet50/b")
    cut(Path("runs/resnet50/b"), 10)
    header = json.loads(Path("runs/resnet50/b/header.json").read_text())
    Path("runs/resnet50/b/header.json").write_text(json.dumps(header | {"execution_id": "b"}))
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
    assert sync.main(["pulled"]) == 0
    assert "0 sent, 1 already there" in capsys.readouterr().out
    assert list(pull(Path("pulled"))) == [(pulled, "there")]


def test_pull_overwrites_nothing(store: Path, run: Path) -> None:
    mlflow.send(run)
    other = Path("pulled/resnet50") / result_of(run)["hash"]
    shutil.copytree(run, other)
    (other / "header.json").write_text('{"execution_id": "another"}')
    assert list(pull(Path("pulled"))) == [(other.with_name(other.name + ".2"), "written")]
    assert (other / "header.json").read_text() == '{"execution_id": "another"}'


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "config.yaml"])
def test_a_tampered_artifact_is_refused(store: Path, run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    mlflow.send(run)
    (file,) = Path("mlruns").rglob(name)
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    assert sync.main(["--pull", f"sqlite:///{store}", "--out", "pulled"]) == 1
    assert f"{name}: not the file that was sent" in capsys.readouterr().err
    assert not list(Path("pulled").rglob("result.json"))


def test_a_result_of_another_run_is_refused(store: Path, run: Path) -> None:
    """Even when its digest was changed along with it."""
    run_id, result = mlflow.send(run), result_of(run)
    result["spec"]["config"]["optimizer"]["lr"] = 1.0
    (file,) = Path("mlruns").rglob("result.json")
    file.write_text(json.dumps(result))
    with server.connected() as client:
        client.set_tag(run_id, "sha256/result.json", hashlib.sha256(file.read_bytes()).hexdigest())
    ((_, outcome),) = pull(Path("pulled"))
    assert "of another run" in outcome


def test_sync_names_what_it_leaves_out(
    store: Path, run: Path, few_rows: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, "runs/empty")
    Path("runs/empty/events.jsonl").unlink()
    assert sync.main([]) == 1
    captured = capsys.readouterr()
    assert "runs/empty: training has not begun" in captured.err
    assert "1 sent, 0 already there, 1 left out" in captured.out


def test_sync_without_runs_says_what_to_type(store: Path) -> None:
    with pytest.raises(UserError, match="suite sync DIR"):
        sync.main(["nowhere"])
    with pytest.raises(UserError, match="two commands"):
        sync.main(["runs", "--pull", "sqlite:///mlflow.db"])


# ------------------------------------------------------------------------------------------------- console
DIGITS = Data(
    "real", "scikit-learn digits", "87ff", {"train": 1437, "valid": 360}, note="too few to compare", unit="images"
)
CONFIG = {
    "task": {"name": "resnet50"},
    "scale": "laptop",
    "optimizer": {"name": "kfac"},
    "comm": {"name": "fp8"},
    "backend": "torch",
    "compile": False,
    "world": 1,
    "max_steps": 100,
}


class Ladder:
    """As much of a task as the console looks at."""

    data = DIGITS
    targets = (Target("top1", 90), Target("top1", 95), Target("top1", 97))


def console(**changes: Any) -> Console:
    return Console(CONFIG | changes, Ladder())  # pyright: ignore[reportArgumentType]


def evaluated(step: int, top1: float) -> Evaluated:
    return Evaluated(step, 64 * step, 0.05 * step, 0.06 * step, {"loss": 0.5, "top1": top1})


def step(number: int) -> Step:
    return Step(number, 64 * number, 0.25, {"lr": 0.1}, 0.05 * number, 0.05)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "resnet50 · laptop stand-in on scikit-learn digits (real, 1,797 images) · kfac · torch · 1 device"),
        (
            {"scale": "gpu", "world": 4, "backend": "jax"},
            "resnet50 · gpu scale on scikit-learn digits (real, 1,797 images) · kfac · jax · 4 devices · comm fp8",
        ),
    ],
)
def test_the_first_line_says_what_runs(capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: str) -> None:
    console(**changes).opening()
    assert capsys.readouterr().out.splitlines()[0] == line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "loading torch, making weights and the first batch; the clock"),
        ({"compile": True}, "first batch; compiling with torch.compile; the clock"),
        ({"backend": "jax"}, "loading jax, making weights and the first batch; compiling with jax; the clock"),
    ],
)
def test_the_second_line_says_what_comes_before_the_first_step(
    capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    console(**changes).opening()
    _, second = capsys.readouterr().out.splitlines()
    assert says in second


def test_what_takes_long_is_named_and_what_does_not_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said, printed = threading.Event(), []

    def spy(*words: str, **_: Any) -> None:
        printed.extend(words)
        said.set()

    monkeypatch.setattr("builtins.print", spy)
    with patience("soon done", seconds=60):
        pass
    with patience("reading the data of bert", seconds=0):
        assert said.wait(30)
    assert printed == ["reading the data of bert …"]


def test_the_first_line_needs_no_framework() -> None:
    code = """
import sys
from suite import configure, run
from suite.track.console import Console
config = configure.compose(["+task=resnet50"])
Console(config, run.make_task(config)).opening()
print(sorted({"torch", "jax", "mlflow", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, _, loaded = done.stdout.splitlines()
    assert first.startswith("resnet50 · laptop stand-in on scikit-learn digits (real, 1,797 images) · sgd")
    assert loaded == "[]"


def test_progress_without_a_terminal_is_a_line_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    listen = console()
    for event in (Started(0), step(1), step(10), evaluated(10, 80.5), step(20), evaluated(20, 96.0)):
        listen(event)
    listen(evaluated(30, 94.0))
    listen(evaluated(40, 98.0))
    listen(Finished(40, {"kind": "reached", "step": 40}))
    assert capsys.readouterr().out.splitlines() == [
        "step 10/100 · train loss 0.25 · valid top1 80.5 · target 90 (9.5 short), last 97 (16.5 short) · "
        "0.5 s, at most 4.5 s left",
        "step 20/100 · train loss 0.25 · valid top1 96 · target 97 (1 short) · 1 s, at most 4 s left",
        "step 30/100 · train loss 0.25 · valid top1 94 · target 97 (3 short) · 1.5 s, at most 3.5 s left",
        "step 40/100 · train loss 0.25 · valid top1 98 · every target met · 2 s, at most 3 s left",
    ]


def test_where_less_is_better_the_training_loss_and_the_metric_are_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Less(Ladder):
        targets = (Target("loss", 0.4, False), Target("loss", 0.2, False))

    listen = Console(CONFIG, Less())  # pyright: ignore[reportArgumentType]
    listen(step(10))
    listen(evaluated(10, 80.5))
    assert "train loss 0.25 · valid loss 0.5 · target 0.4 (0.1 over), last 0.2 (0.3 over)" in capsys.readouterr().out


def test_a_long_silence_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    listen = console()
    for number in range(1, 61):
        now += 1.0
        listen(step(number))
    shown = [line.split(" · ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["step 20/100", "step 40/100", "step 60/100"]


def test_a_terminal_is_redrawn_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    listen, start = console(max_steps=5000), time.monotonic()
    for number in range(1, 5001):
        listen(step(number))
    drawn, most = screen.getvalue().count("step "), 2 + 10 * (time.monotonic() - start)
    listen(Finished(5000, {"kind": "exhausted", "step": 5000}))
    assert 1 <= drawn <= most
    assert screen.getvalue().endswith("\x1b[2K"), "the line is wiped at the end"


def test_resumed_interrupted_reused(capsys: pytest.CaptureFixture[str]) -> None:
    listen = console()
    listen(Started(50, resumed=True))
    listen.interrupted(Path("runs/a"), Finished(57, {"kind": "interrupted", "step": 57, "signal": "SIGINT"}))
    listen.reused(Path("runs/a"))
    resumed, interrupted, reused = capsys.readouterr().out.splitlines()
    assert resumed == "going on from step 50"
    assert interrupted == "interrupted (SIGINT): saved in runs/a; the same command goes on from step 57"
    assert reused == "this result exists: runs/a/result.json; force=true runs it again"


@pytest.fixture
def close(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Print a result with some of it changed; returns what was printed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(**changes: Any) -> str:
        result = result_of(made) | changes
        config = result["spec"]["config"]
        Console(config, None).closing(result, Path("runs/a/result.json"), published.rows_for("resnet50"))
        return capsys.readouterr().out

    return call


def test_the_closing_table(made: Path, close: Callable[..., str]) -> None:
    printed, result = close(), result_of(made)
    lines = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    easy, best = result["targets"][0], max(point["metrics"]["top1"] for point in result["curve"])
    took = f"{easy['train_seconds']:.2f}"
    assert "target reached step samples train s all-in s last miss" in lines
    assert f"top1>=5 yes {easy['step']} {easy['samples']} {took} {easy['wall_seconds']:.2f} none" in lines
    last = result["curve"][-1]
    train, wall = f"{last['train_seconds']:.2f}", f"{last['wall_seconds']:.2f}"
    assert f"top1>=99 no, best {best:.4g} > 20 > 1,280 > {train} > {wall} {train} (step 20)" in lines
    assert "made all max_steps=20 steps. Not reached: top1>=99" in lines
    spent = " all in · compile 0.0 s · median step "
    assert any(" of training, " in line and spent in line and line.endswith(" · cpu") for line in lines)
    assert any(line.startswith("J1-01 SGD, Osawa ResNet-18 128 × P100/V100 4,096 90 67.79") for line in lines)
    assert f"6 of 190 published rows, {closing.ORDER}. All: suite board" in lines
    assert "…" not in printed, "nothing is cut"
    assert "never accuracy, steps or seconds" in " ".join(lines)
    assert f"Data: {result['data']['note']}" in lines
    assert lines[-2:] == ["result runs/a/result.json", "MLflow not sent (track=none); suite sync runs/a sends it"]
    assert "\x1b" not in printed and max(map(len, printed.splitlines())) <= 120


def test_the_closing_says_how_to_open_mlflow(
    made: Path, close: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = result_of(made)["spec"]
    spec["config"]["track"]["name"] = "mlflow"
    assert close(spec=spec).endswith("MLflow  mlflow ui --backend-store-uri sqlite:///mlflow.db\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert close(spec=spec).endswith("MLflow  http://tracking:5000\n")


def test_other_outcomes_read_clearly(made: Path, close: Callable[..., str]) -> None:
    assert "diverged: the train loss at step 1,200 was nan" in close(
        outcome={"kind": "diverged", "step": 1200, "loss": "nan"}
    )
    failed = close(
        outcome={"kind": "failed", "error": "ValueError: shapes [3] and [4]"},
        curve=[],
        targets=[result_of(made)["targets"][1] | {"bracket": [None, None]}],
        step_seconds={"p50": None, "p99": None},
    )
    assert "failed: ValueError: shapes [3] and [4]" in failed
    assert "no step made" in failed and "never evaluated" in failed
    assert "published" not in failed, "nothing to compare"
    assert "compile 3.0 s (cache hit)" in close(compile_seconds=3.0, compile_cache="hit")


def test_the_rows_beside_a_run() -> None:
    rows = published.rows_for("resnet50")
    chosen = closing.choose(rows, optimizer="kfac", batch_size=32768)
    assert len(chosen) == closing.MOST_ROWS
    assert all(None not in (row.hardware, row.devices, row.epochs, row.time_seconds) for row in chosen)
    assert len({(row.citation, row.optimizer) for row in chosen}) == len(chosen)
    mine = ["kfac" in str(row.optimizer).replace("-", "").lower() for row in chosen]
    assert any(mine) and mine == sorted(mine, reverse=True), "the run's own optimizer comes first"
    others = [row for row in chosen if "K" not in str(row.optimizer)]
    assert others == sorted(others, key=lambda row: (row.batch_size != 32768, row.time_seconds))
    assert "C1-03" in {row.id for row in chosen}
    assert closing.choose([], optimizer="kfac", batch_size=64) == []


def test_one_row_for_each_paper_and_optimizer_the_fastest() -> None:
    row = published.row("A1-12")
    slow, quick = replace(row, id="a", time_seconds=500.0), replace(row, id="b", time_seconds=400.0)
    other = replace(row, id="c", citation="Another paper", time_seconds=450.0)
    vague = replace(row, id="d", citation="A third", hardware=None, time_seconds=1.0)
    text = replace(row, id="e", citation="A fourth", value="matches")
    rows = [slow, quick, other, vague, text]
    assert [row.id for row in closing.choose(rows, optimizer="sgd", batch_size=64)] == ["d", "b", "c"]
    many = [vague, *(replace(quick, id=f"e{n}", citation=f"Paper {n}") for n in range(closing.MOST_ROWS))]
    assert vague not in closing.choose(many, optimizer="sgd", batch_size=64), "those that print most are taken"
    same_batch = replace(other, batch_size=64)
    assert closing.choose([quick, same_batch], optimizer="sgd", batch_size=64)[0] is same_batch


def test_a_sweep_s_runs_stand_side_by_side(made: Path, tmp_path: Path) -> None:
    result = result_of(made)
    missed = [target | {"reached": False} for target in result["targets"]]
    for name, changes in {"hit": {}, "miss": {"targets": missed, "outcome": {"kind": "diverged"}}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result | changes))
    runs = [(["task=a", f"seed={seed}"], tmp_path / name) for seed, name in enumerate(("hit", "miss", "nothing"))]
    file, screen = io.StringIO(), printer()
    screen.file, screen.width = file, 400
    screen.print(sweep.comparison([*runs, (["task=a", "seed=9"], None)]))
    head, _, *lines = [re.sub(r"\s+", " ", line).strip() for line in file.getvalue().splitlines()]
    assert head == "run target reached at step train s at the end result"
    easy, last = result["targets"][0], result["curve"][-1]
    end, spent = f"top1 {last['metrics']['top1']:.4g}", f"> {last['train_seconds']:.2f}"
    assert lines == [
        f"seed=0 top1>=5 {easy['step']} {easy['train_seconds']:.2f} {end} {tmp_path}/hit/result.json",
        f"seed=1 none, diverged > 20 {spent} {end} {tmp_path}/miss/result.json",
        f"seed=2 no result {tmp_path}/nothing",
        "seed=9 no result refused",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.25 s"), (99.94, "99.9 s"), (330, "5.5 min"), (3600, "60 min"), (104400, "29 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert closing.duration(seconds) == text
