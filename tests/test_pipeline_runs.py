"""Runs with `partition=auto`: the bits of one device, interruptions, lost peers, and what is rejected."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import inherit
from small import SMALL, SMALL_AUTOENCODER, SMALL_BERT, SMALL_TRANSFORMER, SPARSE
from tiny_runs import curve, wait_for_step

from suite.contract import UserError
from suite.launch.checks import check_run
from suite.launch.job import make_task
from suite.settings import configure

Call = Callable[..., tuple[int, str]]
COMMON = ("track=none", "threads=1", "max_steps=4", "eval_every=2", "stop_at_target=false")
BERT = ("+task=bert", *(f"task.{word}" for word in SMALL_BERT))
TRANSFORMER = ("+task=transformer", *(f"task.{word}" for word in SMALL_TRANSFORMER), "task.dropout=0.1")
AUTOENCODER = ("+task=autoencoder", *(f"task.{word}" for word in SMALL_AUTOENCODER), "task.eval_batch_size=30")
RESNET, CIFAR = (
    (f"+task={task}", *(f"task.{word}" for word in SMALL[task][0]), "task.eval_batch_size=24")
    for task in ("resnet50", "cifar10")
)
SPARSE_BERT = (*BERT, *(f"task.{word}" for word in SPARSE[0]))
CUT = "partition=auto"
SLOW = pytest.mark.slow  # four processes, twice
# with `tflops`, nothing is timed: all runs have the same plan, on which the bits of encoded gradients depend. Devices
# are so slow that a plan divides the work of a small model; on faster ones, one stage would have all of it
FIXED = ("partition.tflops=0.0001", "partition.bandwidth_gb=10")


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "suite", *COMMON, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=inherit(OMP_NUM_THREADS="1"), text=True, **pipes)


def train(folder: Path, *arguments: str) -> Path:
    process = start(*arguments, f"run_dir={folder}")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return folder


def weights(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "weights.safetensors")


def assert_same(one: Path, other: Path, *, metrics: bool = True) -> None:
    """Check that two runs have the same bits; `metrics=False`: without those of evaluations."""
    assert [row for row in curve(one) if metrics or not row[4]] == [
        row for row in curve(other) if metrics or not row[4]
    ]
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.mark.parametrize(
    "task, optimizer, stages",
    [
        pytest.param((*BERT, "task.dropout=0.1"), "lamb", 2, id="bert, tied weights and dropout"),
        pytest.param(TRANSFORMER, "adamw", 2, id="transformer, dropout and a search", marks=SLOW),
        pytest.param(AUTOENCODER, "rmsprop", 3, id="autoencoder, three stages", marks=SLOW),
        pytest.param(SPARSE_BERT, "adamw", 2, id="bert, sparse matrices", marks=SLOW),
    ],
)
def test_a_pipeline_has_the_bits_of_one_device(task: tuple[str, ...], optimizer: str, stages: int, tmp_path: Path):
    words = (*task, f"optimizer={optimizer}")
    whole = train(tmp_path / "whole", *words, "accumulate=4")
    cut = train(tmp_path / "cut", *words, CUT, f"partition.stages={stages}", f"world={stages}")
    assert_same(
        whole, cut, metrics=False
    )  # each rank evaluates some samples of a batch, whose products round differently
    assert json.loads((cut / "result.json").read_text())["bytes"]["by_name"]["values"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "world, more",
    [
        pytest.param(3, ("partition.stages=2", "task.eval_batch_size=24"), id="uneven: a stage with two replicas"),
        pytest.param(4, ("partition.stages=2", "clip_norm=0.1"), id="replicas and clipping", marks=SLOW),
        pytest.param(
            3,
            ("partition.stages=2", "task.eval_batch_size=24", "partition.micro_batches=1"),
            id="a replica without micro-batches",
            marks=SLOW,
        ),
    ],
)
def test_replicas_differ_from_one_device_by_rounding(world: int, more: tuple[str, ...], tmp_path: Path):
    shared = [word for word in more if not word.startswith("partition")]
    words = (*BERT, "optimizer=sgd", "optimizer.lr=0.1")
    whole = train(tmp_path / "whole", *words, *shared, "accumulate=4")
    cut = train(tmp_path / "cut", *words, *more, CUT, f"world={world}")
    assert distance(whole, cut) <= 1e-6


@SLOW
@pytest.mark.parametrize(
    "task, stages, world, rounding",
    [
        pytest.param(CIFAR, 2, 2, 0.0, id="cifar10"),
        pytest.param(RESNET, 3, 3, 0.0, id="resnet50, three stages"),
        pytest.param(CIFAR, 2, 3, 1e-6, id="cifar10, a stage with two replicas"),
        pytest.param(RESNET, 2, 4, 1e-6, id="resnet50, two pipelines"),
    ],
)
def test_running_statistics_are_those_of_one_device(
    task: tuple[str, ...], stages: int, world: int, rounding: float, tmp_path: Path
):
    words = (*task, "optimizer=sgd", "precision=float64" if rounding else "precision=float32")
    whole = train(tmp_path / "whole", *words, "accumulate=2")
    shape = ("partition.micro_batches=2", f"partition.stages={stages}", f"world={world}")
    cut = train(tmp_path / "cut", *words, CUT, *FIXED, *shape)
    assert distance(whole, cut) <= rounding
    assert any(name.endswith("running_var") and (value != 1).all() for name, value in weights(cut).items())
    for one, other in zip(curve(whole), curve(cut), strict=True):
        assert one[2] == pytest.approx(other[2], rel=1e-6) and one[4] == pytest.approx(other[4], rel=1e-6)


def distance(one: Path, other: Path) -> float:
    """Return how far two runs' weights are apart, over their norm."""
    first, second = weights(one), weights(other)
    difference = sum(float(np.square(first[name] - second[name]).sum()) for name in first) ** 0.5
    return difference / sum(float(np.square(value).sum()) for value in first.values()) ** 0.5


@SLOW
def test_delayed_gradients_are_those_of_data_parallel_ranks(tmp_path: Path):
    """Each update uses the gradients of the step before, also at a stage with a single rank."""
    words = (*BERT, "optimizer=sgd", "optimizer.lr=0.3", "task.eval_batch_size=24")
    whole = train(tmp_path / "whole", *words, "comm=double_buffering", "world=2")
    cut = train(tmp_path / "cut", *words, CUT, "comm=double_buffering", "partition.stages=2", "world=3")
    usual = train(tmp_path / "usual", *words, CUT, "partition.stages=2", "world=3")
    assert distance(whole, cut) < 1e-6 < 1e-4 < distance(whole, usual)


@SLOW
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(("comm=overlap",), id="overlap"),
        pytest.param(("comm=leader", "comm.ranks_per_host=2"), id="leader"),
    ],
)
def test_modes_in_float32_train_the_same_weights(mode: tuple[str, ...], tmp_path: Path):
    words = (*BERT, "optimizer=sgd", "optimizer.lr=0.3", CUT, *FIXED, "partition.stages=2", "world=4")
    assert distance(train(tmp_path / "usual", *words), train(tmp_path / "other", *words, *mode)) < 1e-6


@SLOW
@pytest.mark.parametrize("policy", ["fastest", "adaprec", "projected"])
def test_a_policy_chooses_the_mode_of_the_replicas(policy: str, tmp_path: Path):
    """Trials leave no trace: a run that replays the decisions has the same bits."""
    words = (*BERT, "optimizer=sgd", "optimizer.lr=0.3", CUT, *FIXED, "partition.stages=2", "world=4", "max_steps=8")
    chosen = train(tmp_path / "chosen", *words, f"comm={policy}")
    result = json.loads((chosen / "result.json").read_text())
    assert result["decisions"] and result["bytes"]["by_name"]["averages"] > 0
    replayed = train(tmp_path / "again", *words, f"comm={policy}", f"decisions={chosen / 'result.json'}")
    assert_same(chosen, replayed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, bits", [("fp8", 8.1), *(pytest.param(*case, marks=SLOW) for case in (("float21", 21.4), ("onebit", 1.2)))]
)
def test_replicas_average_in_any_communication_mode(mode: str, bits: float, tmp_path: Path):
    """Each evaluation checks that the replicas of a stage hold the same bits."""
    words = (*BERT, "optimizer=sgd", "optimizer.lr=0.3", CUT, "partition.stages=2", "world=4", "max_steps=12")
    coded = train(tmp_path / "coded", *words, f"comm={mode}")
    losses = [row[2] for row in curve(coded) if row[2]]
    assert losses[-1] < losses[0] - 0.05
    result = json.loads((coded / "result.json").read_text())
    assert 0 < result["bytes"]["by_name"]["averages"] / 12 < bits / 8 * result["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, more",
    [
        pytest.param(BERT, ("optimizer=lamb", "world=2"), id="one replica of each stage"),
        pytest.param(BERT, ("optimizer=sgd", "world=4", "comm=onebit"), id="residuals of two replicas"),
        pytest.param(BERT, ("optimizer=sgd", "world=4", "comm=double_buffering"), id="delayed gradients"),
        pytest.param(CIFAR, ("optimizer=sgd", "world=2", "partition.micro_batches=2"), id="running statistics"),
    ],
)
def test_an_interrupted_pipeline_continues_with_the_same_bits(
    task: tuple[str, ...], more: tuple[str, ...], tmp_path: Path
):
    words = (*task, *more, CUT, *FIXED, "partition.stages=2", "max_steps=60", "eval_every=20")
    process = start(*words, f"run_dir={tmp_path / 'cut'}")
    wait_for_step(process, tmp_path / "cut", 5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    train(tmp_path / "cut", *words)
    train(tmp_path / "whole", *words)
    assert len(json.loads((tmp_path / "cut" / "result.json").read_text())["segments"]) == 2
    assert_same(tmp_path / "whole", tmp_path / "cut")


@SLOW
def test_a_killed_stage_ends_the_run_and_it_continues(tmp_path: Path):
    words = (*BERT, "optimizer=lamb", CUT, "partition.stages=2", "world=2", "max_steps=60", "checkpoint_every=5")
    process = start(*words, f"run_dir={tmp_path / 'cut'}")
    wait_for_step(process, tmp_path / "cut", 12)
    os.kill(ranks_of(process.pid)[-1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, None) and not (tmp_path / "cut" / "result.json").exists()
    assert "the same command continues from step" in output, output
    train(tmp_path / "cut", *words)
    train(tmp_path / "whole", *words)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def ranks_of(launcher: int) -> list[int]:
    """Return the processes that a launcher has started, in order."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        workers = [int(pid) for pid in children if "worker" in Path(f"/proc/{pid}/cmdline").read_text()]
        if len(workers) > 1:
            return workers
    raise AssertionError("no ranks")


@pytest.mark.parametrize(
    "words, message",
    [
        (("world=1",), "no device for a second stage; set world=2"),
        (("world=2", "partition.stages=3"), "more than the devices of world=2; set world=3"),
        (("world=2", "accumulate=2"), "set partition.micro_batches=2 instead"),
        (("world=2", "precision=bfloat16"), "set precision=float32 or precision=tf32"),
        (("world=2", "compile=true"), "leave out compile="),
        (("world=2", "optimizer=kfac"), "needs world, observe, .* set optimizer= to one of adagrad, adamw, .*sm3"),
        (("world=2", "partition.micro_batches=3"), "does not divide task.batch_size=32"),
    ],
)
def test_what_a_pipeline_cannot_use_is_rejected(words: tuple[str, ...], message: str):
    config = configure.resolve(["+task=bert", "optimizer=lamb", CUT, *words])
    with pytest.raises(UserError, match=f"partition=auto: .*{message}"):
        check_run(config, make_task(config))


@pytest.mark.parametrize("word", ["fp", "overlap"])
def test_an_unknown_codec_of_activations_is_rejected(word: str):
    with pytest.raises(UserError, match=f"partition.activations={word}: no such codec; .*fp8"):
        configure.resolve(["+task=bert", "optimizer=lamb", CUT, "world=2", f"partition.activations={word}"])


@SLOW
def test_a_run_encodes_activations(tmp_path: Path):
    words = (*AUTOENCODER, "optimizer=sgd", CUT, *FIXED, "partition.stages=2", "world=2")
    exact = train(tmp_path / "exact", *words)
    coded = train(tmp_path / "coded", *words, "partition.activations=fp8")
    first, second = ([row[2] for row in curve(folder) if row[2]] for folder in (exact, coded))
    assert first != second
    np.testing.assert_allclose(first, second, rtol=2e-4)  # 6e-5 was measured
    assert sent(coded) <= 0.5 * sent(exact)  # 8 of 32 bits, and the message's padding


@SLOW
def test_bytes_are_those_of_the_steps(tmp_path: Path):
    """Bytes of the pass before the first step, which warms up, are not counted."""
    words = (*AUTOENCODER, "optimizer=sgd", CUT, *FIXED, "partition.stages=2", "world=2")
    short = train(tmp_path / "short", *words, "max_steps=2")
    assert sent(train(tmp_path / "long", *words)) == 2 * sent(short)


def sent(folder: Path) -> int:
    """Bytes of the values that crossed the cut."""
    return json.loads((folder / "result.json").read_text())["bytes"]["by_name"]["values"]


@pytest.mark.parametrize(
    "words, message",
    [
        (("+task=frnn",), "task=frnn carries hidden and cell .*; leave out partition= and set accumulate=4$"),
        (
            (*RESNET, "task.mixup=0.4", "partition.micro_batches=2"),
            "task=resnet50 carries image and target .*accumulate=2, or set task.mixup=0",
        ),
        (
            (*RESNET, "task.bn_group=8"),
            r"task.batch_size=16: .* 4 × 8 = 32; set task.batch_size=32, .* or fewer partition.micro_batches",
        ),
        ((*BERT, "task.sparsity=dynamic"), "cannot move in a pipeline; set task.sparsity=static, or dense"),
        ((*BERT, "task.sparsity=static"), "set task.sparse.execution=dense, or backend=jax"),
    ],
)
def test_a_task_that_cannot_be_cut_says_why(words: tuple[str, ...], message: str):
    with pytest.raises(UserError, match=message):
        config = configure.resolve([*words, "optimizer=sgd", CUT, "world=2"])
        check_run(config, make_task(config))


def test_a_plan_needs_no_devices(suite: Call):
    words = (*BERT, "optimizer=lamb", "partition=v100", "partition.stages=2", "world=8", "network=100gbit")
    code, text = suite("plan", *words, "--json")
    planned: dict[str, Any] = json.loads(text)
    part = planned["partition"]
    assert code in (0, 1) and len(part["stages"]) == 2
    assert part["pipelines"] * sum(stage["replicas"] for stage in part["stages"]) == 8
    assert sum(stage["nodes"] for stage in part["stages"]) > 20 and part["step_seconds"] > 0


def test_a_plan_that_does_not_fit_says_how_many_devices_would(suite: Call):
    words = ("+task=bert", "optimizer=lamb", "partition=v100", "world=2", "partition.memory_gib=0.003")
    code, text = suite("plan", *words)
    assert code == 2 and "devices" in text and "fit" in text
