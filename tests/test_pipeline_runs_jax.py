"""Runs with `partition=auto backend=jax`: one device's gradients, modes, interruptions, lost peers, and rejections."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import SMALL_AUTOENCODER, SMALL_BERT, SMALL_TRANSFORMER
from test_pipeline_runs import CIFAR, RESNET, SPARSE_BERT, Call, assert_same, ranks_of, start, train
from tiny_runs import wait_for_step

from suite.comm.partition.jax import run
from suite.contract import Task, UserError
from suite.engine import RanksDiffer
from suite.engine import jax as whole
from suite.engine.jax_programs import Mode
from suite.engine.pipeline import jax as pipeline
from suite.launch.checks import check_run
from suite.launch.job import make_task
from suite.settings import configure
from suite.training import checkpoint

BERT = ("+task=bert", *(f"task.{word}" for word in SMALL_BERT))
TRANSFORMER = ("+task=transformer", *(f"task.{word}" for word in SMALL_TRANSFORMER), "task.dropout=0.1")
AUTOENCODER = ("+task=autoencoder", "task.widths=[784,20,10,5]", *(f"task.{word}" for word in SMALL_AUTOENCODER))
# with `tflops`, nothing is timed: all runs have the same plan
CUT = ("backend=jax", "partition=auto", "partition.tflops=0.01", "partition.bandwidth_gb=10")
TWO = ("partition.stages=2", "world=2")
FOUR = ("partition.stages=2", "world=4")
HYPER = {"lr": 0.01}
STEPS = 4
SLOW = pytest.mark.slow  # the frameworks differ in none of this but in what tests/partition tries


def made(*words: str) -> tuple[Task, pipeline.Engine]:
    config = configure.resolve([*CUT, *words])
    task = make_task(config)
    return task, pipeline.Engine(task, config)


def trained(engine: Any, task: Task, steps: Sequence[int] = range(STEPS)) -> list[float]:
    """Train some steps and return their losses."""
    return engine.losses([engine.step(step, task.batch("train", 0, step, 0, 1), HYPER) for step in steps])


def distance(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the norm of the difference, relative to the norm of what is expected."""
    assert found.keys() == expected.keys()
    differences = [np.asarray(found[name], float) - np.asarray(value, float) for name, value in expected.items()]
    squares = sum(float(np.square(value).sum()) for value in differences)
    return (squares / sum(float(np.square(np.asarray(value, float)).sum()) for value in expected.values())) ** 0.5


def gradients(task: Task, engine: pipeline.Engine) -> tuple[float, dict[str, Any]]:
    """Return the first step's loss and gradients on one device: Σ sum / Σ weight over four micro-batches."""
    batch, seed, step = engine._inputs(task.batch("train", 0, 0, 0, 1), 0)
    params, kinds = {n: jnp.asarray(value) for n, value in engine._initial().items()}, pipeline.list_kinds(task)
    function = jax.jit(
        jax.value_and_grad(lambda *inputs: pipeline.sum_losses(engine.model, kinds, *inputs)[:2], has_aux=True)
    )
    size = task.batch_size // 4
    parts = [{name: value[first : first + size] for name, value in batch.items()} for first in range(0, 4 * size, size)]
    results = [function(params, part, seed, step) for part in parts]
    total, weight, grads = jax.tree.map(lambda *values: sum(values), *[(*result[0], result[1]) for result in results])
    return float(total / weight), {name: np.asarray(grad / weight) for name, grad in grads.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, optimizer, stages, world, precision",
    [
        pytest.param(BERT, "lamb", 2, 2, "float32", id="bert, tied weights"),
        pytest.param(TRANSFORMER, "adamw", 2, 3, "float64", id="transformer, dropout, an uneven world"),
        pytest.param(AUTOENCODER, "muon", 3, 3, "float64", id="autoencoder, three stages"),
    ],
)
def test_gradients_of_one_device(task: Any, optimizer: str, stages: int, world: int, precision: str) -> None:
    words = (f"partition.stages={stages}", f"world={world}", f"optimizer={optimizer}", f"precision={precision}")
    task, engine = made(*task, *words, "task.eval_batch_size=30")
    rounding = {"float32": 5e-7, "float64": 1e-14}[precision]
    with Mode(precision):
        loss, expected = gradients(task, engine)
        inputs = engine._inputs(task.batch("train", 0, 0, 0, 1), 0)
        found = float(engine.pipeline.step(*inputs)), dict(engine.pipeline.gradients)
        alone = run(engine.pipeline.traced, engine.pipeline.plan, engine._initial(), inputs)
    assert found[0] == pytest.approx(loss, rel=10 * rounding) and distance(found[1], expected) <= rounding
    assert found[0] == float(alone[0]) and distance(found[1], alone[1]) == 0.0


@pytest.mark.slow
def test_losses_of_one_device_in_both_frameworks() -> None:
    words = (*AUTOENCODER, "optimizer=lamb", "clip_norm=0.5")
    task, engine = made(*words, *TWO)
    engine.warm(task.batch("train", 0, 0, 0, 1), range(STEPS), HYPER)
    assert not engine.ledger.facts()["sent"], "what warm-up sends is no part of the run"
    losses = trained(engine, task)
    one = configure.resolve([*words, "backend=jax", "accumulate=4"])
    alone = whole.Engine(task, one)
    np.testing.assert_allclose(losses, trained(alone, task), rtol=1e-6)
    assert distance(engine.weights(), alone.weights()) <= 1e-6
    [outputs], [expected] = (list(made.evaluate([task.batch("valid", 0, 0, 0, 1)])) for made in (engine, alone))
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    other = pytest.importorskip("suite.engine.torch").Engine(task, one.model_copy(update={"backend": "torch"}))
    np.testing.assert_allclose(losses, trained(other, task), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, stages, world",
    [
        pytest.param(CIFAR, 2, 3, id="cifar10, a stage with two replicas"),
        pytest.param(RESNET, 3, 3, id="resnet50, three stages"),
        pytest.param(RESNET, 2, 2, id="resnet50"),
        pytest.param(SPARSE_BERT, 2, 2, id="bert, patterns of sparse matrices"),
    ],
)
def test_buffers_are_those_of_one_device(task: Any, stages: int, world: int, tmp_path: Path) -> None:
    """Also after a checkpoint, on stages in another order."""
    words = (*task, "optimizer=sgd", "precision=float64")
    cut = (*words, "partition.micro_batches=2", f"partition.stages={stages}", f"world={world}")
    task, engine = made(*cut)
    engine.warm(task.batch("train", 0, 0, 0, 1), range(STEPS), HYPER)
    alone = whole.Engine(task, configure.resolve([*words, "backend=jax", "accumulate=2"]))
    losses = trained(engine, task, [0, 1])
    snapshot = engine.snapshot()
    losses += trained(engine, task, [2, 3])
    np.testing.assert_allclose(losses, trained(alone, task), rtol=1e-12)
    found, expected = engine.weights(), alone.weights()
    assert distance(found, expected) <= 1e-12
    [outputs], [others] = (list(one.evaluate([task.batch("valid", 0, 0, 0, 1)])) for one in (engine, alone))
    for name, value in others.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    _, again = made(*cut, "partition.schedule=gpipe")
    again.restore(*snapshot)
    trained(again, task, [2, 3])
    assert distance(again.weights(), found) == 0.0
    groups = [group for number in range(stages) if len(group := engine.grid.group(number)) > 1]
    assert len(groups) == (world > stages)
    for first, second, *_ in groups:
        engine.pipeline.stages[second].buffers |= engine.pipeline.stages[second].put({"bn1.running_mean": jnp.ones(3)})
        with pytest.raises(RanksDiffer, match=f"on ranks {first}, {second}"):
            engine.compare()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, least, most",
    [
        ("onebit", 1e-4, 1.0),
        pytest.param("int8", 1e-4, 0.02, marks=SLOW),
        pytest.param("float32", 0.0, 1e-6, marks=SLOW),
        ("overlap", 0.0, 1e-6),
        pytest.param("leader comm.ranks_per_host=2", 0.0, 1e-6, marks=SLOW),
        ("hierarchical comm.ranks_per_host=2", 1e-5, 0.2),
    ],
)
def test_replicas_average_in_the_mode(mode: str, least: float, most: float) -> None:
    task, engine = made(*AUTOENCODER, "optimizer=adamw", *f"comm={mode}".split(), *FOUR)
    _, expected = gradients(task, engine)
    engine.pipeline.step(*engine._inputs(task.batch("train", 0, 0, 0, 1), 0))
    assert least <= distance(engine.pipeline.gradients, expected) <= most


@pytest.mark.slow
def test_delayed_gradients_are_those_of_the_last_step() -> None:
    """At all stages, also where one has a single rank."""
    words = ("optimizer=adamw", "comm=double_buffering", "partition.stages=2", "world=3", "task.eval_batch_size=30")
    task, engine = made(*AUTOENCODER, *words)
    _, expected = gradients(task, engine)
    engine.warm(task.batch("train", 0, 0, 0, 1), range(STEPS), HYPER)
    engine.pipeline.step(*engine._inputs(task.batch("train", 0, 0, 0, 1), 0))
    assert not any(np.asarray(grad).any() for grad in engine.pipeline.gradients.values())
    engine.pipeline.step(*engine._inputs(task.batch("train", 0, 1, 0, 1), 1))
    assert distance(engine.pipeline.gradients, expected) < 1e-6


@SLOW
def test_a_policy_chooses_the_mode_of_the_replicas(tmp_path: Path) -> None:
    """Trials leave no trace: a run that replays the decisions has the same bits."""
    words = (*AUTOENCODER, "task.eval_batch_size=32", "optimizer=adamw", *CUT, *FOUR, "max_steps=8", "comm=fastest")
    chosen = train(tmp_path / "chosen", *words)
    result = json.loads((chosen / "result.json").read_text())
    assert result["decisions"] and result["decisions"][0]["mode"]
    assert_same(chosen, train(tmp_path / "again", *words, f"decisions={chosen / 'result.json'}"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["onebit", "double_buffering"])
def test_a_checkpoint_has_residuals_and_the_plan(mode: str, tmp_path: Path) -> None:
    words = (*AUTOENCODER, "optimizer=adamw", f"comm={mode}", *FOUR)
    task, engine = made(*words)
    trained(engine, task, [0, 1])
    assert any(replicas.residuals for replicas in engine.pipeline.replicas)
    how: dict[str, Any] = {"ranks": engine.local_ranks, "gather": engine.ranks.gather}
    checkpoint.save_checkpoint(tmp_path, engine.snapshot(), lambda: {"config_hash": "c", "world": 4}, step=2, **how)
    losses = trained(engine, task, [2, 3])
    _, again = made(*words, "partition.schedule=gpipe")
    assert again.pipeline.plan != engine.pipeline.plan
    found = checkpoint.load_checkpoint(tmp_path, "c", ranks=again.local_ranks, world=4)
    assert found
    again.restore(found[0], found[1]["skeleton"])
    again.warm(task.batch("train", 0, 2, 0, 1), range(2, 4), HYPER)
    assert again.pipeline.plan == engine.pipeline.plan
    assert trained(again, task, [2, 3]) == losses and distance(again.weights(), engine.weights()) == 0.0


def test_replicas_that_differ_are_named() -> None:
    _, engine = made(*AUTOENCODER, "optimizer=adamw", *FOUR)
    engine.compare()
    number, group = next((number, group) for number in range(2) if len(group := engine.grid.group(number)) > 1)
    stage = engine.pipeline.stages[group[1]]
    stage.parameters |= {stage.own[0]: stage.parameters[stage.own[0]] + 1}
    with pytest.raises(RanksDiffer, match=rf"^stage {number}, on ranks {group[0]}, {group[1]}"):
        engine.compare()


# ------------------------------------------------------------------------------------------- through the command line
LONG = (*AUTOENCODER, "task.eval_batch_size=30", "optimizer=adamw", *CUT, "max_steps=60", "eval_every=20")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run in one process and return its folder."""
    return train(tmp_path_factory.mktemp("pipeline") / "whole", *LONG, *TWO)


@pytest.mark.slow
def test_an_interrupted_pipeline_continues_with_the_same_bits(uninterrupted: Path, tmp_path: Path) -> None:
    """One process has both stages at first; then two processes have one each."""
    process = start(*LONG, *TWO, f"run_dir={tmp_path / 'cut'}")
    wait_for_step(process, tmp_path / "cut", 5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "2 devices: 1 pipeline of 2 stages" in output, output
    train(tmp_path / "cut", *LONG, *TWO, "launch.processes=2")
    assert len(json.loads((tmp_path / "cut" / "result.json").read_text())["segments"]) == 2
    assert_same(uninterrupted, tmp_path / "cut")


@pytest.mark.slow
def test_activations_are_encoded_between_devices_as_between_processes(tmp_path: Path) -> None:
    words = (*LONG, "max_steps=4", "eval_every=2", *TWO)
    plain = train(tmp_path / "plain", *words)
    coded = train(tmp_path / "coded", *words, "partition.activations=fp8")
    assert_same(coded, train(tmp_path / "processes", *words, "partition.activations=fp8", "launch.processes=2"))
    sent = [json.loads((run / "result.json").read_text())["bytes"]["by_name"]["values"] for run in (plain, coded)]
    assert sent[1] < 0.7 * sent[0]  # 8 of 32 bits, and the scale of each message, which has 5 values here


@SLOW
def test_a_killed_stage_ends_the_run_and_it_continues(uninterrupted: Path, tmp_path: Path) -> None:
    words = (*LONG, *TWO, "checkpoint_every=5")
    process = start(*words, "launch.processes=2", f"run_dir={tmp_path / 'cut'}")
    wait_for_step(process, tmp_path / "cut", 12)
    os.kill(ranks_of(process.pid)[-1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, None) and not (tmp_path / "cut" / "result.json").exists()
    assert "rank 1 was killed by SIGKILL" in output and "the same command continues from step" in output, output
    train(tmp_path / "cut", *words)
    assert_same(uninterrupted, tmp_path / "cut")


@pytest.mark.parametrize(
    "words, message",
    [
        (("partition.bandwidth_gb=null",), "set partition.bandwidth_gb= as well"),
        (("partition.tflops=null",), "leave them out, or set partition.tflops= as well"),
        (("partition.tflops=null", "partition.bandwidth_gb=null", "partition.overhead_us=5"), "are not read"),
        (("world=1",), "no device for a second stage; set world=2"),
        (("optimizer=kfac",), "needs world, observe, .* set optimizer= to one of .*adamw"),
    ],
)
def test_what_a_pipeline_cannot_use_is_rejected(words: tuple[str, ...], message: str) -> None:
    config = configure.resolve(["+task=bert", "optimizer=lamb", *CUT, "world=2", *words])
    with pytest.raises(UserError, match=f"partition=auto: .*{message}"):
        check_run(config, make_task(config))


def test_a_plan_needs_no_devices(suite: Call) -> None:
    words = (*BERT, "optimizer=lamb", "backend=jax", "partition=v100", "partition.stages=2", "world=8")
    code, text = suite("plan", *words, "network=100gbit", "--json")
    part = json.loads(text)["partition"]
    assert code in (0, 1) and len(part["stages"]) == 2
    assert part["pipelines"] * sum(stage["replicas"] for stage in part["stages"]) == 8
    assert sum(stage["nodes"] for stage in part["stages"]) > 20 and part["step_seconds"] > 0
