"""Estimates by `suite plan` of a device's memory, against what torch holds."""

from typing import Any

import engines
import pytest
import small
from tiny_runs import TINY, Call

from suite import load
from suite.contract import UserError
from suite.launch.job import make_task
from suite.projection import memory
from suite.settings import configure
from suite.settings.run import Run

ESTIMATED = 0.02  # of the activations
HELD = 0.2  # of the optimizer's arrays
FEW = "task.sources.hmm.options={train: 64, valid: 24}"  # sequences
NETWORKS = {
    "autoencoder": [["task.batch_size=50", "task.sources.curves.options={train: 200, valid: 50}"]],
    "bert": [
        [FEW],
        ["task.dropout=0.1", "task.layers=4", FEW],
        ["task.dropout=0.1", "task.batch_size=8", "task.heads=8", "task.sequence=128", "task.positions=128", FEW],
    ],
    "caffenet": [["task.batch_size=16"]],
    "cifar10": [["task.batch_size=32", "task.blocks=[2,2,1,1]"]],
    "dlrm": [["task.batch_size=128"], ["task.batch_size=128", "task.variant=v2"]],
    "frnn": [["task.batch_size=8"], ["task.batch_size=8", "task.filters=32", "task.length=32"]],
    "resnet50": [["task.data=shapes", "task.batch_size=32"]],
    "transformer": [["task.batch_size=16"], ["task.batch_size=16", "task.dropout=0.1", "task.depth=3"]],
}


def kept(engine: Any) -> int:
    """Bytes that one forward pass keeps for the backward pass, parameters apart."""
    import torch

    parameters = {value.untyped_storage().data_ptr() for value in engine.model.parameters()}
    storages: dict[int, Any] = {}

    def pack(value: Any) -> Any:
        if (storage := value.untyped_storage()).data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        engine._evaluate(engine._micro(engine.task.batch("train", 0, 0)), (0, 0), observe=None)
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.sample(4)
@pytest.mark.parametrize("task, options", [(task, each) for task, lists in NETWORKS.items() for each in lists])
def test_activations_are_what_torch_keeps(task: str, options: list[str]) -> None:
    config = configure.resolve_training([f"task={task}", *options, "threads=1"])
    engine = engines.engine(config, small.make_small(config))
    assert memory.estimate_memory(config, engine.task)["activations"] == pytest.approx(kept(engine), rel=ESTIMATED)


@pytest.mark.sample(4)
@pytest.mark.parametrize("optimizer", sorted(set(load.find_members("optimizers")) - {"external", "kbfgs"}))
def test_the_optimizers_arrays_are_counted(optimizer: str) -> None:
    config = configure.resolve(["task=bert", f"optimizer={optimizer}", "task.batch_size=8", FEW, "threads=1"])
    engine = engines.engine(config, make_task(config))
    engines.advance(engine, range(1), 1e-3)
    held = sum(value.nbytes for name, value in engine.snapshot()[0].items() if not engines.called(name))
    assert memory.estimate_memory(config, engine.task)["optimizer"] == pytest.approx(held, rel=HELD)


@pytest.mark.parametrize("optimizer, off", [("kfac", 0.0), ("muon", 0.1)])
def test_averages_of_what_adamw_updates_are_counted(optimizer: str, off: float) -> None:
    """K-FAC's fallback adds one average of each parameter without factors; Muon always has it."""
    held, estimated = [], []
    for ratio in off, 0.1:
        config = configure.resolve(["task=frnn", f"optimizer={optimizer}", f"optimizer.fallback_ratio={ratio}"])
        made = engines.engine(config, make_task(config))
        averages = [state for key, state in made.optimizer.state.items() if not isinstance(key, str)]
        held.append(sum(value.nbytes for state in averages for value in state.values()))
        estimated.append(memory.estimate_memory(config, made.task)["optimizer"])
    assert estimated[1] - estimated[0] == held[1] - held[0]
    assert optimizer == "kfac" or estimated[0] == pytest.approx(held[0], rel=0.01)
    assert (held[1] > 1.2 * held[0]) == (optimizer == "kfac")


def test_precision_and_micro_batches_change_the_estimate() -> None:
    sizes = ["task=bert", "scale=gpu", "precision=float32", "task.variant=tiny", "task.positions=128"]
    words: dict[str, list[str]] = {"": [], "double": ["precision=float64"], "shared": ["accumulate=4", "world=2"]}
    found = {}
    for name, typed in words.items():
        config = configure.resolve([*sizes, *typed])
        task = make_task(config, absent=True)
        found[name] = memory.estimate_memory(config, task)
    whole = found[""]["activations"]
    assert found["double"] == pytest.approx({name: 2 * size for name, size in found[""].items()}, rel=0.1)
    assert found["shared"]["activations"] == whole // 8


def test_the_plan_warns_and_says_what_fits(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["task=resnet50", "scale=paper", "device=cuda"]
    monkeypatch.setattr(memory, "describe_device", lambda config: (80 * 2**30, "a device"))
    text = suite("plan", *words)[1]
    assert "warning: memory: the run needs about 334 GiB on each device, but a device has 80; set accumulate=8 " in text
    assert "parameters, gradients and copies in bfloat16 0.238" in text
    assert "warning: memory" not in suite("plan", *words, "accumulate=8")[1]
    assert "set accumulate=16 " in suite("plan", *words, "precision=float32")[1]
    absurd = f"task.batch_size={10**24}"  # a typing error: it must not be tried number by number
    assert "set accumulate=" in suite("plan", *words, absurd)[1]
    text = suite("plan", "task=dlrm", "scale=paper")[1]
    assert "parameters and optimizer alone need 179 GiB" in text
    assert "warning: memory" not in suite("plan", "task=dlrm", "scale=paper", "world=4")[1], "tables are split by rows"


def test_a_run_that_cannot_fit_does_not_start(suite: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A refused run writes no file, a finished run is shown, and the optimizer's estimate is ignored."""
    words = ["task=autoencoder", "optimizer=shampoo", "max_steps=1", "threads=1", "track=none"]
    words += ["task.widths=[784,200,30]", "task.sources.curves.options={train: 2000, valid: 50}"]
    config = configure.resolve_training(words)
    needed = memory.estimate_memory(config, make_task(config))
    fixed = needed["parameters"] + needed["activations"]
    monkeypatch.setattr(memory, "describe_device", lambda config: (int(0.9 * fixed), "a device"))
    code, text = suite(*words, f"run_dir={tmp_path / 'refused'}")
    assert code == 2 and "memory: the run needs about" in text
    assert not (tmp_path / "refused").exists()
    monkeypatch.setattr(memory, "describe_device", lambda config: (fixed, "a device"))
    assert suite(*words, f"run_dir={tmp_path / 'runs'}")[0] == 0
    monkeypatch.setattr(memory, "describe_device", lambda config: (1, "a device"))
    code, text = suite(*words, f"run_dir={tmp_path / 'runs'}")
    assert code == 0 and "has a result already" in text


def test_ranks_of_other_hosts_take_no_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = memory.describe_device(on("cpu", 64))[0]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert memory.describe_device(on("cpu", 64))[0] == pytest.approx(64 * alone, rel=1e-6)
    for wrong in ("two", "0", ""):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", wrong)
        with pytest.raises(UserError, match=f"LOCAL_WORLD_SIZE={wrong}: must be the number of ranks of this host"):
            memory.describe_device(on("cpu", 64))


def test_a_task_that_estimates_nothing_is_not_counted(suite: Call) -> None:
    assert "activations not counted: the task does not estimate them" in suite("plan", *TINY)[1]


def on(device: str, world: int) -> Run:
    return configure.resolve_training(["task=resnet50", f"device={device}", f"world={world}"])


def test_the_memory_of_a_gpu_is_asked_of_the_driver(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    answers = "*--id=0,2*) echo 24576; echo 40960;; *) echo 24576; echo 16384; echo 40960;;"
    driver.write_text(f'#!/bin/sh\ncase "$*" in {answers} esac\n')
    driver.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert memory.describe_device(on("cuda", 2)) == (16384 * 2**20, "the smallest GPU here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert memory.describe_device(on("cuda", 2)) == (24576 * 2**20, "the smallest GPU here")
    monkeypatch.setenv("PATH", "/nowhere")
    assert memory.describe_device(on("cuda", 2))[0] == memory.USUAL
    assert memory.describe_device(on("cpu", 2))[0] * 2 <= memory.describe_device(on("cpu", 1))[0]
