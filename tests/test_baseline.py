"""A baseline as a run: its result claims no step, and whatever reads results shows it beside the trained ones."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from boards import rank
from stored import find_faults
from tiny_runs import TINY, Call

from suite import cli
from suite.board.site import pages
from suite.contract import UserError
from suite.settings import configure
from suite.settings.run import BaselineRun, Run
from suite.tasks.frnn import trees
from suite.track.points import list_points
from suite.track.view import view_run

MEANS = (*TINY, "baseline=means")
ABSENT = ("optimizer", "comm", "backend", "world", "batch_size")  # from a baseline's spec


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline that reaches the first of two targets."""
    folder = tmp_path_factory.mktemp("made") / "run"
    assert cli.main([*MEANS, f"run_dir={folder}"]) == 0
    return folder


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


# ------------------------------------------------------------------------------------------------ configuration
def test_a_configuration_holds_what_a_baseline_reads() -> None:
    run = configure.resolve(["+task=frnn", "baseline=trees", "seed=3"])
    assert isinstance(run, BaselineRun)
    assert run.baseline.plain() == {"name": "trees", "task": "frnn", "module": "suite.tasks.frnn.trees"}
    assert run.seed == 3 and run.tuning.plain() == {"source": "defaults", "trials": 0}
    assert not {"optimizer", "backend", "comm", "world", "max_steps", "schedule", "precision"} & run.plain().keys()


def test_no_baseline_leaves_a_run_as_it_was() -> None:
    assert configure.resolve(["task=frnn", "baseline=null"]) == configure.resolve(["task=frnn"])
    assert isinstance(configure.resolve(["task=frnn"]), Run)


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["task=bert"], "baseline=trees: is for task=frnn, not bert; use suite task=frnn baseline=trees"),
        *((["task=frnn", typed], f"{typed}: a baseline is fitted whole") for typed in ("optimizer=adamw", "world=2")),
        *((["task=frnn", typed], f"{typed}: a baseline is fitted whole") for typed in ("backend=jax", "max_steps=9")),
        (["task=frnn", "recipe=frnn-published"], "recipe=frnn-published: a baseline is fitted whole"),
        (["task=frnn", "optimizer.lr=0.1"], "optimizer.lr=0.1: a baseline is fitted whole"),
        (["experiment=A1-12"], "is for task=frnn, not resnet50"),
        ([], "no task; set task=NAME: "),
    ],
)
def test_what_does_not_go_with_a_baseline_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        configure.resolve([*overrides, "baseline=trees"])
    assert says in str(error.value)


def test_an_unknown_baseline_and_tuning_one(suite: Call) -> None:
    code, text = suite("+task=frnn", "baseline=tree")
    assert code == 2 and "did you mean trees?" in text
    code, text = suite("tune", "+task=frnn", "baseline=trees")
    assert code == 2 and "no optimizer to tune" in text


# ------------------------------------------------------------------------------------------------------- result
def test_the_result_claims_nothing_that_was_not_used(made: Path) -> None:
    result = result_of(made)
    assert list(find_faults(result)) == []
    assert result["spec"]["baseline"] == "means" and [result["spec"][name] for name in ABSENT] == [None] * len(ABSENT)
    assert (result["precision"], result["parameters"], result["steps"], result["samples"]) == (None, None, 0, 0)
    (point,) = result["curve"]
    assert (point["step"], point["samples"]) == (None, None) and 60 < point["metrics"]["top1"] < 80
    first, last = result["targets"]
    assert (first["reached"], first["step"], first["train_seconds"]) == (True, None, point["train_seconds"])
    assert not last["reached"] and result["outcome"] == {"kind": "exhausted"}
    assert 0 < point["train_seconds"] <= result["train_seconds"] < result["wall_seconds"]
    assert result["excluded_seconds"]["evaluation"] > 0


@pytest.mark.parametrize("name, value", [("optimizer", "sgd"), ("backend", "torch"), ("world", 1), ("batch_size", 16)])
def test_the_schema_refuses_a_baseline_that_claims_more(made: Path, name: str, value: Any) -> None:
    result = result_of(made)
    result["spec"][name] = value
    assert any(name in fault for fault in find_faults(result))
    del result["spec"]["baseline"]  # and a trained run that claims less
    assert list(find_faults(result))


def test_the_same_command_finds_the_result_and_a_seed_is_another_run(suite: Call) -> None:
    assert suite(*MEANS)[0] == 0
    code, text = suite(*MEANS)
    assert code == 0 and "this run has a result already" in text
    assert suite(*MEANS, "require=target")[0] == 3
    assert suite(*MEANS, "seed=1")[0] == 0
    first, second = (result_of(path)["curve"][0]["metrics"] for path in Path("runs/tiny").iterdir())
    assert first != second, "each seed has batches of its own"


def test_what_the_console_says(suite: Call) -> None:
    code, text = suite(*MEANS)
    lines = text.splitlines()
    assert code == 0 and lines[0].endswith(" samples) · means (baseline)")
    assert "fitted · valid top1 79.49" in text and "fitted. Not reached: top1>=80" in text
    assert "step " not in text.replace("step  samples", "") and "torch" not in text


def test_an_interrupted_fit_leaves_no_result_and_starts_anew(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import mylab.means as means

    with monkeypatch.context() as patch:
        patch.setattr(means, "fit", lambda task, seed: os.kill(os.getpid(), signal.SIGTERM))
        code, text = suite(*MEANS, "run_dir=cut")
    assert code == 143 and "interrupted (SIGTERM)" in text and not Path("cut/result.json").exists()
    assert suite(*MEANS, "run_dir=cut")[0] == 0
    assert [line["event"] for line in events(Path("cut"))] == ["started", "evaluated", "finished"]


def test_a_fit_that_fails_is_a_failed_run(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mylab.means.score", lambda task, model: 1 / 0)
    code, text = suite(*MEANS, "run_dir=bad")
    result = result_of(Path("bad"))
    assert code == 1 and "failed: ZeroDivisionError" in text
    assert result["outcome"]["kind"] == "failed" and list(find_faults(result)) == []


# ------------------------------------------------------------------------------------------------------ readers
def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_verify_fits_again(suite: Call, made: Path) -> None:
    code, text = suite("verify", str(made / "result.json"), "--trust")
    assert code == 0 and "fitted again: metrics agree bit for bit" in text, text
    folder = Path(shutil.copytree(made, "copy"))
    (folder / "events.jsonl").unlink()
    assert suite("verify", str(folder / "result.json"), "--steps", "0")[0] == 0
    result = result_of(folder)
    result["curve"][0]["metrics"]["top1"] += 0.1
    (folder / "result.json").write_text(json.dumps(result))
    code, text = suite("verify", str(folder / "result.json"), "--trust")
    assert code == 1 and "metrics.top1: the result has 79.5871" in text and "79.4871" in text, text


def test_mlflow_gets_no_optimizer_and_no_steps(made: Path) -> None:
    with view_run(made) as view:
        tags = view.tags()
        found = list_points(view.result, view.events, finished=True)
        assert view.name == "means (baseline)·s0" and view.status == "FINISHED"
        assert tags["baseline"] == "means" and not {"optimizer", "comm", "backend"} & tags.keys()
        assert view.parameters()["baseline.module"] == "mylab.means"
    assert ("valid/top1", 0) in found and ("time_to/top1_60/seconds", 0) in found
    assert not [key for key, _ in found if key.endswith(("/steps", "/samples")) or key == "parameters"]


@pytest.mark.slow
def test_the_board_shows_a_baseline_beside_every_batch_size(suite: Call, made: Path, tmp_path: Path) -> None:
    for size in (16, 32):
        assert suite(*TINY, "max_steps=40", f"task.batch_size={size}", "device=cpu")[0] == 0
    trained = [result_of(path.parent) for path in Path("runs").rglob("result.json")]
    results = [*trained, result_of(made)]
    leaderboard = rank(results)
    assert rank(results[::-1]).groups == leaderboard.groups
    assert {(group.batch_size, group.goal) for group in leaderboard.groups} == {
        (size, f"top1>={value}") for size in (16, 32) for value in (60, 80)
    }
    for group in leaderboard.groups:
        sgd, means = group.entries
        assert (sgd.optimizer, means.optimizer) == ("sgd", "means (baseline)")
        assert (means.rank, means.steps, means.backend) == (None, None, None)
        assert means.tries and means.tries.n == 1 and means.tries.hits == (group.goal == "top1>=60")
        assert means.score == pytest.approx(79.487, abs=1e-3) and bool(means.timings)
        assert sgd.settings == means.settings == {}, "a baseline's lack of settings is no difference"
    pages.render_pages(leaderboard, [], tmp_path / "site")
    text = (tmp_path / "site" / "task" / "tiny.html").read_text()
    assert "means (baseline)" in text and "top1 79.49" in text and "None" not in text


def test_a_baseline_alone_is_a_group(made: Path, tmp_path: Path) -> None:
    leaderboard = rank([result_of(made)])
    assert [len(group.entries) for group in leaderboard.groups] == [1, 1]
    assert all("no batches" in group.title for group in leaderboard.groups)
    pages.render_pages(leaderboard, [], tmp_path)
    assert "no batches" in (tmp_path / "task" / "tiny.html").read_text()


def test_plan_says_what_would_be_fitted_and_how_long_it_took(suite: Call) -> None:
    code, text = suite("plan", *MEANS)
    assert code == 0 and text.splitlines()[0].endswith("means (baseline)") and "time        unknown" in text
    assert suite(*MEANS)[0] == 0
    assert "s of training, as in runs/tiny/" in suite("plan", *MEANS)[1]
    found = json.loads(suite("plan", *MEANS, "--json")[1])
    assert found["baseline"] == "means" and found["parameters"] is None and found["missing"] == []
    assert suite("plan", *TINY)[0] == 0, "a run's plan reads past a baseline's result"


@pytest.mark.slow
def test_a_sweep_runs_the_baseline_beside_the_default(suite: Call) -> None:
    code, text = suite("-m", *TINY, "baseline=null,means", "task.batch_size=32")
    names = sorted(result["spec"].get("baseline", "") for result in map(result_of, Path("runs/tiny").iterdir()))
    assert code == 0 and names == ["", "means"], text


def test_the_trees_are_a_row_of_frnn(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's command makes a row of FRNN, on few shots and fewer steps of them."""
    monkeypatch.setattr(trees, "SAMPLES", 600)
    counts = "task.sources.simulated.counts={single: 160, cross: 20, glimpse: 24}"
    code, text = suite(
        "+task=frnn", "baseline=trees", "track=none", "threads=1", "run_dir=run", "task.variant=0d", counts
    )
    assert code == 0, text
    result = result_of(Path("run"))
    assert list(find_faults(result)) == [] and result["spec"]["baseline"] == "trees"
    assert result["curve"][0]["metrics"]["auc"] > 0.65 and "G1-01" in result["published"]
    assert "best classical (XGBoost)" in text


@pytest.mark.parametrize("more, says", [([], "name: adamw"), (["baseline=trees"], "module: suite.tasks.frnn.trees")])
def test_the_configuration_is_printed_with_what_was_added_to_it(suite_command: Any, more: list[str], says: str) -> None:
    """A printed configuration has the task's own optimizer, or the baseline that takes no recipe."""
    done = suite_command("+task=frnn", *more, "--cfg", "job")
    assert done.returncode == 0 and says in done.stdout, done.stderr
