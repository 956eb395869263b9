"""Weights are kept after a run, and start another one: in either backend, with any number of ranks."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from test_run import finish, start
from tiny_runs import curve, wait_for_step

from suite.training.weights import save_weights

SHORT = ("max_steps=20", "eval_every=5", "stop_at_target=false")
STILL = ("max_steps=1", "optimizer.lr=0", "stop_at_target=false")


def result(directory: Path) -> dict:
    return json.loads((directory / "result.json").read_text())


@pytest.mark.sample(1)
@pytest.mark.parametrize("first, second", [("torch", "jax"), ("jax", "torch")])
def test_what_one_backend_trained_starts_the_other(
    tiny: Callable[..., str], tmp_path: Path, first: str, second: str
) -> None:
    tiny(*SHORT, f"backend={first}", "run_dir=trained")
    trained = result(tmp_path / "trained")
    assert trained["weights"]["step"] == 20
    tiny(*STILL, f"backend={second}", "init_from=trained", "run_dir=again")
    tiny(*STILL, f"backend={second}", "run_dir=scratch")
    metrics = [result(tmp_path / name)["curve"][-1]["metrics"] for name in ("trained", "again", "scratch")]
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-5) and metrics[2] != pytest.approx(metrics[0], abs=1e-3)


def test_the_best_weights_are_those_of_the_best_evaluation(tiny: Callable[..., str], tmp_path: Path) -> None:
    tiny("max_steps=40", "eval_every=2", "stop_at_target=false", "optimizer.lr=3", "save=best", "run_dir=run")
    made = result(tmp_path / "run")
    metric, higher = made["targets"][-1]["metric"], made["targets"][-1]["higher_is_better"]
    values = [point["metrics"][metric] for point in made["curve"]]
    assert (min if higher else max)(values) != values[0] or len(set(values)) > 1
    best = (max if higher else min)(values)
    assert made["weights"]["step"] == next(p["step"] for p in made["curve"] if p["metrics"][metric] == best)
    with safe_open(tmp_path / "run" / "weights.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["suite"])["step"] == made["weights"]["step"]


def test_no_weights_where_none_are_wanted(tiny: Callable[..., str], tmp_path: Path) -> None:
    tiny(*SHORT, "save=none", "run_dir=run")
    assert not (tmp_path / "run" / "weights.safetensors").exists() and "weights" not in result(tmp_path / "run")


@pytest.mark.slow
def test_a_resumed_run_keeps_the_same_best_weights(tmp_path: Path) -> None:
    run = (
        "max_steps=300",
        "eval_every=10",
        "stop_at_target=false",
        "optimizer.lr=1",
        "save=best",
        "checkpoint_every=7",
    )
    process = start(tmp_path, *run, "run_dir=cut")
    wait_for_step(process, tmp_path / "cut", 40)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    finish(tmp_path, *run, "run_dir=cut")
    finish(tmp_path, *run, "run_dir=whole")
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert result(tmp_path / "cut")["weights"] == result(tmp_path / "whole")["weights"]


def test_wrong_weights_are_rejected_before_the_run(tiny: Callable[..., str], tmp_path: Path) -> None:
    tiny(*SHORT, "run_dir=trained")
    values = load_file(tmp_path / "trained" / "weights.safetensors")
    name = next(iter(values))
    save_file({**values, name: np.zeros((1, 2, 3), np.float32)}, tmp_path / "shape.safetensors")
    save_file({key: value for key, value in values.items() if key != name}, tmp_path / "missing.safetensors")
    save_file({**values, "other": np.zeros(1, np.float32)}, tmp_path / "more.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"nothing")
    flipped = bytearray((tmp_path / "trained" / "weights.safetensors").read_bytes())
    flipped[-5] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(flipped)
    for file, said in {
        "shape": f"{name} has shape (1, 2, 3)",
        "missing": f"{name} is missing",
        "more": "other is not in this model",
        "damaged": "is damaged",
        "flipped": "its checksum differs",
        "absent": "absent.safetensors does not exist",
    }.items():
        output = tiny(*STILL, f"init_from={file}.safetensors", "run_dir=no", code=2)
        assert said in output and "Traceback" not in output
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_replaced_initial_weights_run_again(tiny: Callable[..., str], tmp_path: Path) -> None:
    tiny(*SHORT, "run_dir=trained")
    for scale in (1, 1, 2):
        values = load_file(tmp_path / "trained" / "weights.safetensors")
        save_file(
            {key: (scale * value).astype(value.dtype) for key, value in values.items()}, tmp_path / "w.safetensors"
        )
        output = tiny(*STILL, "init_from=w.safetensors", "run_dir=run")
        assert ("this run has a result already" in output) is (scale == 1 and (tmp_path / "seen").exists())
        (tmp_path / "seen").touch()
    assert (tmp_path / "run.2" / "result.json").exists()


@pytest.mark.slow
def test_several_evaluations_in_a_row_must_meet_the_target(tiny: Callable[..., str], tmp_path: Path) -> None:
    run = ("max_steps=400", "eval_every=2", "optimizer=kfac")
    tiny(*run, "run_dir=one")
    tiny(*run, "target_evaluations=3", "run_dir=three")
    one, three = result(tmp_path / "one"), result(tmp_path / "three")
    assert one["outcome"]["kind"] == three["outcome"]["kind"] == "reached"
    target = three["targets"][-1]
    met = [point["metrics"][target["metric"]] >= target["value"] for point in three["curve"]]
    assert all(met[-3:]) and not any(all(met[index : index + 3]) for index in range(len(met) - 3))
    assert three["steps"] >= one["steps"] + 4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_split_tables_are_saved_whole(suite_command, tmp_path: Path, backend: str) -> None:
    run = ("+task=dlrm", "optimizer=sgd", "task.placement=rows", "max_steps=2", "track=none", "threads=1")
    for world in (1, 2):
        done = suite_command(*run, f"backend={backend}", f"world={world}", f"run_dir=w{world}")
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (load_file(tmp_path / f"w{world}" / "weights.safetensors") for world in (1, 2))
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-5, err_msg=name)


def test_equal_weights_make_equal_files(tmp_path: Path) -> None:
    values = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "größe": np.array(7)}
    saved = {save_weights(tmp_path, 1, values, {"task": "größe"}).sha256 for _ in range(8)}
    assert len(saved) == 1
    with safe_open(tmp_path / "weights.safetensors", framework="numpy") as file:
        assert file.keys() == sorted(values) and json.loads(file.metadata()["suite"])["task"] == "größe"
