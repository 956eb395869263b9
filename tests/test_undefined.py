"""Metrics that a validation split does not define are null, and miss every target."""

import json

import boards
import numpy as np
import pytest
from click_lines import make_line, write_logs

from suite.contract import Evaluated, Target
from suite.engine import tree
from suite.launch import replay
from suite.record import record
from suite.settings.configure import resolve
from suite.tasks.dlrm import criteo
from suite.track import console, picture, points, sweep, words
from suite.track.console import Console
from suite.training import checkpoint


def made(name):
    return resolve([f"task={name}"], None).task.build()


def test_a_log_of_one_class_has_no_auc():
    part = {"logit": np.array([0.5, -1.0]), "label": np.zeros(2), "weight": np.ones(2)}
    task = made("dlrm")
    metrics = task.score([part])
    assert metrics["auc"] is None and metrics["loss"] > 0
    assert not any(target.met(metrics) for target in task.targets)
    assert task.score([part | {"label": np.array([1.0, 0.0])}])["auc"] == 1.0


@pytest.mark.parametrize("disrupted", [[True, True], [False, False], []])
def test_shots_of_one_kind_have_no_alarm_rates(disrupted):
    task = made("frnn")
    metrics = task.areas([np.linspace(0, 1, 200)] * len(disrupted), disrupted)
    assert set(metrics) == set(task.undefined) and set(metrics.values()) == {None}
    both = task.areas([np.linspace(0, 1, 200)] * 2, [True, False])
    assert set(both) == set(task.undefined) and None not in both.values()


def test_an_event_and_a_result_are_json_whatever_is_in_them(tmp_path):
    event = Evaluated(1, 2, 0.1, 0.2, {"auc": float("nan"), "loss": float("inf"), "none": None})
    read = json.loads(record.format_event(event), parse_constant=pytest.fail)
    assert read["metrics"] == {"auc": None, "loss": None, "none": None}
    record.write_json(tmp_path / "result.json", {"curve": [{"metrics": {"auc": float("nan")}}]})
    text = (tmp_path / "result.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"curve": [{"metrics": {"auc": None}}]}


def test_every_reader_of_metrics_takes_an_undefined_one(capsys):
    target = Target("auc", 0.8)
    event = {"event": "evaluated", "step": 5, "train_seconds": 1.0, "metrics": {"auc": None, "loss": 0.5}}
    curve = [{**event, "samples": 10, "wall_seconds": 2.0}]
    (rung,) = record.find_crossings(curve, [target])
    assert not rung["reached"] and rung["bracket"] == [5, None]
    evaluated = [{name: value for name, value in point.items() if name != "event"} for point in curve]
    result = boards.made(curve=evaluated, targets=[rung], outcome={"kind": "exhausted"})
    assert words.find_best(result, result.targets[0]) == "undefined"
    assert sweep._numbers(result)[-1] == "auc undefined"
    assert {key for key, _ in points.list_points(result, [event], finished=False)} == {
        "valid/loss",
        "by_millisecond/valid/loss",
    }
    pytest.importorskip("matplotlib")
    assert picture.draw_curve(result, [event], title="a")
    shown = Console(resolve(["task=dlrm", "max_steps=5"]), made("dlrm"))
    for _ in range(2):
        shown(Evaluated(5, 10, 1.0, 2.0, {"auc": None, "loss": 0.5}))
    printed = capsys.readouterr().out
    assert printed.count("auc undefined: only one class in the validation rows") == 1
    assert "valid auc undefined" in printed and console.format_distance(target, {"auc": None}) == "undefined"


def test_state_that_is_not_finite_comes_back_from_a_checkpoint(tmp_path):
    state = {"best": float("inf"), "last": float("nan"), "some": [float("-inf"), 0.5]}
    packed = tree.pack_tree(state, {}, "run", lambda value: None)
    read = json.loads(json.dumps(packed, allow_nan=False), parse_constant=pytest.fail)
    found = tree.unpack_tree(read, {}, lambda array: array)
    assert found["best"] == float("inf") and np.isnan(found["last"]) and found["some"] == [float("-inf"), 0.5]
    rest = {"tree": packed}
    checkpoint.save_checkpoint(
        tmp_path, ({}, {"own": {}, **rest}), lambda: {"why": float("nan")}, step=1, ranks=[0], gather=lambda v: [v]
    )
    index = json.loads((tmp_path / "checkpoint" / "index.json").read_text(), parse_constant=pytest.fail)
    assert index["why"] is None and index["skeleton"] == rest


def test_losses_that_are_not_finite_agree_with_each_other_only():
    assert replay.losses_agree(None, None, 0.0) and replay.losses_agree(float("nan"), None, 0.0)
    assert not replay.losses_agree(1.0, None, 0.1) and not replay.losses_agree(None, 1.0, 0.1)
    assert replay.losses_agree(1.0, 1.05, 0.1) and not replay.losses_agree(1.0, 1.05, 0.01)


def test_a_target_that_is_not_finite_is_one_line(suite, capfd):
    code, printed = suite("plan", "--json", "+task=dlrm", "task.targets=[0.5,inf]")
    assert (code, printed.strip().splitlines()[-1]) == (2, "suite: task.targets.1=inf: must be a finite number"), (
        printed
    )


@pytest.fixture(scope="module")
def no_clicks(tmp_path_factory):
    """Criteo's format, prepared: no validation row is a click."""
    folder = tmp_path_factory.mktemp("criteo")
    logs = write_logs(folder / "raw", [make_line(label) for label in "01" * 64], [make_line("0")] * 32)
    criteo.prepare(logs, folder / "made")
    return folder / "made"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_run_on_a_log_without_clicks_is_json_and_verifies(no_clicks, tmp_path, backend, suite_command, suite):
    command = ["+task=dlrm", "task.data=criteo", f"data_dir={no_clicks}", "track=none", "threads=1", "run_dir=run"]
    sizes = ["task.batch_size=16", "task.eval_batch_size=32", "max_steps=4", "eval_every=2", "checkpoint_every=2"]
    done = suite_command(*command, *sizes, f"backend={backend}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "auc undefined: only one class in the validation rows" in done.stdout
    run = tmp_path / "run"
    result = json.loads((run / "result.json").read_text(), parse_constant=pytest.fail)
    assert [point["metrics"]["auc"] for point in result["curve"]] == [None] * len(result["curve"]) and result["curve"]
    assert not any(target["reached"] for target in result["targets"])
    for line in [*(run / "events.jsonl").read_text().splitlines(), (run / "header.json").read_text()]:
        json.loads(line, parse_constant=pytest.fail)
    for _ in range(2):  # from the log, and then from the result alone
        code, printed = suite("verify", "--steps", "0", str(run / "result.json"))
        assert code == 0, printed
        (run / "events.jsonl").unlink(missing_ok=True)
    code, printed = suite("board", "--results", str(run), "--out", "page")
    assert code == 0, printed
    json.loads((tmp_path / "page" / "leaderboard.json").read_text(), parse_constant=pytest.fail)
