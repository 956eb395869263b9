"""MLflow as a view of run directories."""

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from stored import artifacts, cut, history, query, result_of, status, tags

from suite import published
from suite.contract import UserError
from suite.published import matching
from suite.record import record
from suite.settings.run import AnyRun, TrackSettings
from suite.track import mlflow, parent, picture, server, view
from suite.verbs import sync

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # MLflow's own


def run_of(folder: Path) -> Any:
    return record.load_run(record.read_result(folder / "result.json"))


def test_a_second_send_adds_nothing(store: Path, run: Path) -> None:
    first = mlflow.send_run(run)
    counts = [query(store, f"select count(*) from {table}") for table in ("runs", "metrics", "params", "tags")]
    assert mlflow.send_run(run) == first
    assert [query(store, f"select count(*) from {table}") for table in ("runs", "metrics", "params", "tags")] == counts


def test_names_parameters_and_tags(store: Path, run: Path) -> None:
    run_id, result = mlflow.send_run(run), result_of(run)
    assert query(store, "select name from experiments where experiment_id > 0") == [
        ("resnet50/laptop/scikit-learn digits",)
    ]
    with server.connect_client() as client:
        sent = client.get_run(run_id)
    assert sent.info.run_name == "sgd·float32·torch·s0"
    assert sent.info.status == "FINISHED"
    assert sent.data.params["optimizer.lr"] == json.dumps(result["spec"]["config"]["optimizer"]["lr"])
    assert sent.data.params["task.targets"] == "[5.0, 99.0]"
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


def test_seconds_that_are_too_low_are_tagged(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    with view.view_run(tmp_path / "copy") as before:
        assert "busy_pauses" not in before.tags()
    marked = result_of(run) | {"busy_pauses": 2}
    (tmp_path / "copy" / "result.json").write_text(json.dumps(marked))
    with view.view_run(tmp_path / "copy") as seen:
        assert seen.tags()["busy_pauses"] == "2"


def test_metrics_are_the_run_s_own(store: Path, run: Path) -> None:
    sent, result = history(mlflow.send_run(run)), result_of(run)
    events = record.read_events(run / "events.jsonl")
    steps = [event for event in events if event["event"] == "step"]
    assert sent["train/loss"] == [(event["step"], event["loss"]) for event in steps]
    assert sent["hyper/lr"] == [(event["step"], event["hyper"]["lr"]) for event in steps]
    assert sent["valid/top1"] == [(point["step"], point["metrics"]["top1"]) for point in result["curve"]]
    by_time = [(round(1000 * point["train_seconds"]), point["metrics"]["top1"]) for point in result["curve"]]
    assert sent["by_millisecond/valid/top1"] == by_time
    assert sent["step_seconds/p99"] == [(20, result["step_seconds"]["p99"])]


def test_time_to_target_equals_the_result(store: Path, run: Path) -> None:
    sent, (easy, hard) = history(mlflow.send_run(run)), result_of(run)["targets"]
    assert easy["reached"] and not hard["reached"]
    step = easy["step"]
    assert sent["time_to/top1_5/seconds"] == [(step, easy["train_seconds"])]
    assert sent["time_to/top1_5/steps"] == [(step, step)]
    assert sent["time_to/top1_5/samples"] == [(step, easy["samples"])]
    assert not any(key.startswith("time_to/top1_99") for key in sent)


def test_artifacts_are_the_files(store: Path, run: Path, tmp_path: Path) -> None:
    run_id = mlflow.send_run(run)
    files = artifacts(run_id, tmp_path / "down")
    assert set(files) == {"config.yaml", "header.json", "events.jsonl", "result.json", "curve.svg", "report.html"}
    for name in set(files) - {"curve.svg", "report.html"}:
        assert files[name] == (run / name).read_bytes()
        assert tags(run_id)[f"sha256/{name}"] == hashlib.sha256(files[name]).hexdigest()


def test_mlflow_opens_the_experiment_as_training_with_its_data_and_a_description(store: Path, run: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    sent = client.get_run(mlflow.send_run(run))
    experiment = client.get_experiment(sent.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    (logged,) = sent.inputs.dataset_inputs
    data = result_of(run)["data"]
    assert (logged.dataset.name, logged.dataset.source) == (data["name"], data["label"])
    assert data["identity"].startswith(logged.dataset.digest) and len(logged.dataset.digest) >= 12
    description = sent.data.tags["mlflow.note.content"]
    assert "made all max_steps=20 steps" in description.lower() and "| top1>=99 | no, best" in description


def test_an_experiment_of_an_older_version_opens_as_training_too(store: Path, run: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    with view.view_run(run) as seen:
        old = client.create_experiment(seen.experiment)
    mlflow.send_run(run)
    assert client.get_experiment(old).tags["mlflow.experimentKind"] == "custom_model_development"


def test_an_interrupted_run_is_continued(
    store: Path, run: Path, made: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    cut(run, 10)
    run_id = mlflow.send_run(run)
    assert status(run_id) == "KILLED"
    assert [step for step, _ in history(run_id)["train/loss"]] == list(range(1, 11))
    shutil.copytree(made, run, dirs_exist_ok=True)
    steps: list[int] = []
    log_batch = MlflowClient.log_batch

    def spy(self: MlflowClient, run_id: str, metrics: Any = (), **others: Any) -> Any:
        steps.extend(metric.step for metric in metrics if metric.key == "train/loss")
        return log_batch(self, run_id, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", spy)
    assert mlflow.send_run(run) == run_id
    assert steps == list(range(11, 21)), "only what was missing is sent"
    assert status(run_id) == "FINISHED"
    continued = history(run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(empty_store, store.with_name('other.db'))}")
    assert history(mlflow.send_run(run)) == continued


def test_a_run_cut_back_to_its_checkpoint_is_sent_anew(store: Path, run: Path, made: Path) -> None:
    """Points that the log no longer holds cannot be taken out of an MLflow run."""
    cut(run, 10, seconds=1.0)
    old = mlflow.send_run(run, parent="someone")
    shutil.copytree(made, run, dirs_exist_ok=True)
    new = mlflow.send_run(run)
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
        run_id = mlflow.send_run(run)
        assert (status(run_id), tags(run_id)["outcome"]) == ("RUNNING", "running")
        log.write_text(whole)
        assert mlflow.send_run(run) == run_id
        assert (status(run_id), tags(run_id)["outcome"]) == ("KILLED", "interrupted")
        log.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    mlflow.send_run(run)
    assert (status(run_id), tags(run_id)["outcome"]) == ("KILLED", "killed")


def test_a_directory_without_events_is_refused(store: Path, run: Path) -> None:
    (run / "events.jsonl").write_text("")
    with pytest.raises(UserError, match="training has not started"):
        mlflow.send_run(run)


def test_an_unfinished_run_of_another_version_is_refused(store: Path, run: Path) -> None:
    cut(run, 10)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("task:\n", "task:\n  forgotten_option: 1\n"))
    with pytest.raises(UserError, match=r"a: its configuration cannot be read here: .*forgotten_option: unknown"):
        mlflow.send_run(run)


def tracked(directory: Path) -> AnyRun:
    """Return the run of a directory as track=mlflow has it."""
    run = run_of(directory)
    return run.model_copy(update={"track": TrackSettings(name="mlflow")})


def test_finish_adds_the_rows_beside_the_run_once(store: Path, run: Path) -> None:
    shown, every = tracked(run), published.find_rows("resnet50")
    mlflow.finish_run(shown, run, every)
    mlflow.finish_run(shown, run, every)
    rows = query(store, "select value from tags where key = 'row'")
    chosen = matching.choose_rows(every, shown, samples=1437)
    assert sorted(id for (id,) in rows) == sorted(row.id for row in chosen)


def test_an_interrupted_run_ends_without_an_alarm(store: Path, run: Path) -> None:
    shown = tracked(run)
    cut(run, 10)
    assert not (run / "result.json").exists()
    assert status(mlflow.finish_run(shown, run, ())) == "KILLED"


def test_a_published_row_keeps_its_numbers_and_its_year(store: Path) -> None:
    row = published.find_row("A1-12")
    with server.connect_client() as client:
        assert mlflow.publish_rows(client, "resnet50", [row]) == 1
        where = server.find_experiment(client, "published/resnet50")
        client.set_experiment_tag(where, mlflow.ROWS, "")  # as if ended before the tag was set
        assert mlflow.publish_rows(client, "resnet50", [row]) == 0
        (sent,) = client.search_runs([where], "tags.published = 'true' and tags.row = 'A1-12'")
    assert time.gmtime(sent.info.start_time / 1000)[:3] == (2020, 1, 1) and sent.info.status == "FINISHED"
    assert not sent.info.end_time, "and without a duration"
    assert sent.data.metrics["published/value"] == row.value
    assert sent.data.metrics["published/time_seconds"] == row.time_seconds
    assert sent.data.params["published.optimizer"] == "SP-NGD"


def test_published_rows_are_optional(store: Path, run: Path) -> None:
    """By a setting, and by deleting their experiment, which the next run does not want back."""
    shown = tracked(run)
    silent = shown.model_copy(update={"track": TrackSettings(name="mlflow", published=False)})
    mlflow.finish_run(silent, run, published.find_rows("resnet50"))
    assert query(store, "select count(*) from tags where key = 'row'") == [(0,)]
    with server.connect_client() as client:
        client.delete_experiment(server.find_experiment(client, "published/resnet50"))
    assert mlflow.finish_run(shown, run, published.find_rows("resnet50"))
    assert query(store, "select count(*) from tags where key = 'row'") == [(0,)]


def test_the_year_of_each_published_row_is_its_own() -> None:
    years = {row.id: published.find_year(row) for row in published.load_rows()}
    assert (years["A1-12"], years["H1-01"], years["H1-05"]) == (2020, 2018, 2019)
    unknown = {row.citation for row in published.load_rows() if years[row.id] is None}
    assert len(unknown) <= 3 and all(1980 < year < 2027 for year in years.values() if year)


def test_a_deleted_experiment_says_how_to_restore_it(store: Path, run: Path) -> None:
    run_id = mlflow.send_run(run)
    with server.connect_client() as client:
        experiment = client.get_run(run_id).info.experiment_id
        client.delete_experiment(experiment)
    with pytest.raises(UserError, match=rf"was deleted; .*experiments restore --experiment-id {experiment}`"):
        mlflow.send_run(run)
    with server.connect_client() as client:
        client.restore_experiment(experiment)
    assert mlflow.send_run(run)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "cut"])
def test_a_superseded_run_that_its_experiment_brings_back_is_deleted_again(
    store: Path, run: Path, made: Path, whole: bool
) -> None:
    """MLflow 3.17.2 restores every run of an experiment, also those that were deleted by themselves."""
    cut(run, 10, seconds=1.0)
    mlflow.send_run(run)
    shutil.copytree(made, run, dirs_exist_ok=True)
    if not whole:
        cut(run, 15)
    new = mlflow.send_run(run)
    with server.connect_client() as client:
        experiment = client.get_run(new).info.experiment_id
        client.delete_experiment(experiment)
        client.restore_experiment(experiment)
    active = "select run_uuid from runs where lifecycle_stage = 'active'"
    assert len(query(store, active)) == 2
    assert mlflow.send_run(run) == new
    assert query(store, active) == [(new,)]


def test_a_sweep_has_a_parent(store: Path, run: Path) -> None:
    like, commands = (
        run_of(run),
        [["+task=resnet50", f"seed={seed}"] for seed in (0, 1)],
    )
    number, child = parent.start_sweep(commands, like=like), mlflow.send_run(run)
    assert status(number) == "RUNNING"
    assert mlflow.send_run(run, parent=number) == child
    assert tags(child)["mlflow.parentRunId"] == number
    assert len(query(store, "select distinct experiment_id from runs")) == 1
    assert parent.start_sweep(commands, like=like) != number, "another process makes the same sweep"
    parent.end_sweep(number, [0, 3], whole=True)
    assert status(number) == "FINISHED"
    assert parent.start_sweep(commands, like=like) == number and status(number) == "RUNNING", "the same sweep again"
    parent.end_sweep(number, [0, 1], whole=True)
    assert status(number) == "FAILED"
    parent.end_sweep(number, [0, 143], whole=False)
    assert status(number) == "KILLED"


def test_a_run_below_a_parent_is_named_by_what_differs(store: Path, run: Path) -> None:
    typed = shlex.split(result_of(run)["command"])[1:]
    number = parent.start_sweep([typed, [*typed[:1], "eval_every=4", "seed=1"]], like=run_of(run))
    assert name_of(store, number).startswith("sweep of max_steps, eval_every, task.targets, threads, ")
    plain = mlflow.send_run(run)
    assert name_of(store, plain) == "sgd·float32·torch·s0"
    mlflow.send_run(run, parent=number)
    name = name_of(store, plain)
    assert name.startswith("sgd·float32·torch·s0·max_steps=20·eval_every=5·task.targets=[5,99]·") and len(name) <= 250
    assert "task=resnet50" not in name
    assert mlflow.send_run(run) == plain and name_of(store, plain) == name, "suite sync keeps parent and name"


def name_of(store: Path, run_id: str) -> str:
    ((name,),) = query(store, f"select name from runs where run_uuid = '{run_id}'")
    return name


def test_sync_ends_the_parents_of_sweeps_that_were_killed(
    store: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    like = run_of(run)
    dead, alive = (parent.start_sweep([["seed=0"], [f"seed={seed}"]], like=like) for seed in (1, 2))
    with server.connect_client() as client:
        client.set_tag(dead, parent.PROCESS, f"{socket.gethostname()} {2**22 + 1} 1")  # beyond the largest process id
        elsewhere = client.create_run(client.get_run(dead).info.experiment_id, tags={"published": "false"}).info.run_id
        client.set_tag(elsewhere, parent.PROCESS, f"elsewhere {os.getpid()} 1")
    assert sync.main(["runs", "--without-published"]) == 0
    assert (status(dead), status(alive), status(elsewhere)) == ("KILLED", "RUNNING", "RUNNING")
    assert "1 parents of sweeps whose process is gone are now KILLED" in capsys.readouterr().out
    assert query(store, "select count(*) from tags where key = 'row'") == [(0,)]


def test_a_diverged_run_is_failed(run: Path) -> None:
    result = result_of(run)
    result["outcome"] = {"kind": "diverged", "step": 20}
    (run / "result.json").write_text(json.dumps(result))
    with view.view_run(run) as seen:
        assert (seen.status, seen.tags()["outcome"]) == ("FAILED", "diverged")


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_dead_server_is_one_line_soon(store: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{closed_port()}")
    before, start = dict(os.environ), time.monotonic()
    with pytest.raises(UserError) as error:
        mlflow.send_run(run)
    assert time.monotonic() - start < 5  # MLflow itself tries for minutes
    assert re.search(r"refused.*suite sync", str(error.value))
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
    assert dict(os.environ) == before


def test_a_silent_server_is_given_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server.FIRST_REQUEST, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent, pytest.raises(UserError, match="timed out"):
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mlflow.send_run(run, uri=f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_database_that_cannot_be_opened_is_given_up(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unable to open database"):
        mlflow.send_run(run, uri=f"sqlite:///{tmp_path}/nowhere/mlflow.db")


def test_the_environment_is_left_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    before = dict(os.environ)
    with server.connect_client():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77", "the user's own setting holds"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert dict(os.environ) == before


def test_the_picture_depends_on_the_run_alone(made: Path) -> None:
    result, events = record.read_result(made / "result.json"), record.read_events(made / "events.jsonl")
    first, second = (picture.draw_curve(result, events, title="x") for _ in range(2))
    assert first == second
    assert b"dc:date" not in first
    untold = result.model_copy(update={"targets": ()})
    assert picture.draw_curve(untold, events, title="x") != first, "the targets are drawn"
