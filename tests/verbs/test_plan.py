"""`suite plan`."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import change
from light import loaded
from tiny_runs import CONF, TINY, Call, copied
from written import write_jpeg

from suite import load
from suite.launch.premises import list_missing
from suite.projection import measured
from suite.settings import configure
from suite.settings.effects import differing_keys
from suite.settings.overrides import key_of
from suite.tasks._data.shapes import NAMES


def planned(suite: Call, *arguments: str) -> dict[str, Any]:
    code, text = suite("plan", *arguments, "--json")
    found = json.loads(text)
    assert code == (1 if found["missing"] else 0)
    return found


def test_plan_of_real_scale_without_its_data(suite: Call) -> None:
    found = planned(suite, "+task=resnet50", "scale=gpu")
    assert found["parameters"] == 25_557_032
    assert found["layers"] == {"conv2d": 53, "batchnorm": 53, "linear": 1}
    assert found["covered_parameters"] == found["parameters"]
    assert found["samples"] == found["steps"] * 256 and found["config"]["task"]["data"] == "folder"
    assert found["epochs"] == pytest.approx(found["samples"] / 1_281_167)
    assert any("set data_dir=DIRECTORY" in line for line in found["missing"])
    assert "absent" not in found["config"]["task"]


def test_plan_of_a_published_row(suite: Call) -> None:
    found = planned(suite, "experiment=A1-12")
    assert found["published"]["id"] == "A1-12" and found["published"]["value"] == 75.4
    assert found["batch_per_device"] == 32 and found["batch_size"] == 32_768
    each = 2 * 1023 * 4 * 25_557_032 // 1024  # a ring all-reduce of float32 gradients
    assert found["gradient_bytes_per_step"] == {"each": each, "all": 1024 * each}
    code, text = suite("plan", "experiment=A1-12")
    assert text.splitlines()[0] == (
        "resnet50 · paper · ImageNet-1k · kfac · torch · float32 · 1,024 devices · comm float32"
    )
    assert code == 1 and "published   A1-12: SP-NGD, ResNet-50, ImageNet-1k · 75.4 top-1 accuracy %" in text
    assert "1,760 steps · 45 epochs · 1,024 × Tesla V100 · 5.5 min" in text and "Natural Gradient" in text
    assert "papers used" not in text, "the row itself says it"
    assert "missing: data: no image directory is given" in text
    assert "missing: 1,024" in text
    assert all(line.startswith("missing: ") for line in text.splitlines()[-2:])


def test_plan_at_paper_scale_says_how_many_devices_papers_used(suite: Call) -> None:
    text = suite("plan", "+task=resnet50", "scale=paper", "task.batch_size=32768")[1]
    assert text.splitlines()[0].endswith(" · sgd · torch · bfloat16 · 1 device · comm float32")
    (line,) = [line for line in text.splitlines() if line.startswith("papers used")]
    assert "1,024 (A1-03, A1-06, A1-12 and " in line and line.endswith(
        "devices for batch 32,768; this plan has 1; set world=N for another number"
    )
    other = suite("plan", "+task=resnet50", "scale=paper", "task.batch_size=96")[1]
    assert re.search(r"papers used \d+ to [\d,]+ devices, with batch sizes other than 96; this plan has 1", other)
    assert "papers used an unknown number" in suite("plan", "+task=frnn", "scale=paper")[1]
    assert "papers used" not in suite("plan", "+task=resnet50")[1], "a stand-in is not what the papers ran"
    assert "published  " not in suite("plan", "+task=resnet50", "scale=paper")[1]


def test_plan_ends_with_0_where_nothing_is_missing(suite: Call) -> None:
    code, text = suite("plan", "+task=resnet50", "device=cpu")
    assert code == 0 and "missing" not in text


def test_plan_refuses_what_no_data_would_mend(suite: Call) -> None:
    code, text = suite("plan", "+task=resnet50", "scale=paper", "world=1024")
    assert code == 2 and "task.batch_size=8192: not divisible" in text
    code, text = suite("plan", *CONF, "+task=tiny", "task.batch_size=15", "world=2")
    assert code == 2 and "task.batch_size=15: not divisible" in text


def test_plan_reads_the_classes_of_the_data_that_is_here(suite: Call, tmp_path: Path) -> None:
    write_jpeg(tmp_path / "images", train=16, valid=16)
    found = planned(suite, "+task=resnet50", "scale=gpu", f"data_dir={tmp_path / 'images'}", "device=cpu")
    assert found["parameters"] == 25_557_032 - (1000 - len(NAMES)) * 2049
    assert found["missing"] == [] and found["epochs"] == found["samples"] / 16


@pytest.mark.quick
@pytest.mark.parametrize(
    "words, remedy",
    [
        (["task=autoencoder", "world=32"], "task.batch_size=480 max_steps=1000 task.eval_batch_size=1024"),
        (["task=cifar10", "world=32"], "task.bn_group=2 task.eval_batch_size=224"),
        (["task=cifar10", "world=3"], "task.batch_size=96 max_steps=300 task.eval_batch_size=201"),
        (["task=resnet50", "world=2", "accumulate=2"], "task.bn_group=16"),
        (["task=dlrm", "world=7", "optimizer=adamw"], None),
        (["task=frnn", "world=5", "optimizer=adamw"], None),
        (["task=transformer", "world=3", "accumulate=5", "optimizer=adamw"], None),
        (["task=resnet50", "world=4", "task.bn_group=16", "launch=slurm", "launch.nodes=3"], "launch.nodes=2"),
        (["task=resnet50", "launch=slurm", "launch.minutes=0"], "at least 1"),
        (["task=resnet50", "launch.minutes=5"], "launch=slurm"),
        (["task=resnet50", "launch.rank=1"], "launch=jax or torchrun"),
        (["task=resnet50", "comm=kfac_stale", "world=2", "task.bn_group=32"], "optimizer=kfac"),
    ],
)
def test_one_round_of_advice_is_enough(suite: Call, words: list[str], remedy: str | None) -> None:
    """And what keeps the recipe's batch comes before what changes it."""
    code, text = suite("plan", *words)
    advice = text.strip().splitlines()[-1].partition(" set " if "; set " in text else "must be ")[2]
    assert code == 2 and (remedy is None or advice.removesuffix(" as well") == remedy), text
    if "=" in advice and " or " not in advice:
        changed = {key_of(word) for word in advice.split()}
        followed = [word for word in words if key_of(word) not in changed] + advice.removesuffix(" as well").split()
        code, text = suite("plan", *followed)
        assert code in (0, 1), text


@pytest.mark.quick
@pytest.mark.parametrize(
    "words, arrays",
    [
        (["optimizer.torch=torch.optim.SGD"], 0),
        (["optimizer.torch=torch.optim.Adagrad"], 1),
        (["optimizer.torch=torch.optim.AdamW"], 2),
        (["optimizer.torch=torch.optim.AdamW", "optimizer.arguments={amsgrad: true}"], 3),
        (["backend=jax", "optimizer.jax=optax.adam"], 2),
        (["backend=jax", "optimizer.jax=optax.sgd", "optimizer.arguments={momentum: 0.9}"], 1),
    ],
)
def test_the_state_of_another_packages_optimizer_is_counted(suite: Call, words: list[str], arrays: int) -> None:
    found = planned(suite, "task=resnet50", "optimizer=external", *words)
    expected = 4 * arrays * found["parameters"]
    assert expected <= found["memory"]["optimizer"] <= expected + 8 * 1000  # and numbers of steps


@pytest.mark.quick
@pytest.mark.parametrize(
    "words, says",
    [
        (["optimizer.torch=torch.optim.RMSpropp"], "torch.optim has no RMSpropp; did you mean RMSprop"),
        (["optimizer.torch=torch.optim.LBFGS"], "asks for a closure that computes the loss again"),
        (["optimizer.torch=torch.optim.swa_utils.AveragedModel"], "is no class of torch.optim.Optimizer"),
        (["backend=jax", "optimizer.jax=optax.adamm"], "optax has no adamm; did you mean"),
        (["backend=jax", "optimizer.jax=optax.identity"], "takes no learning_rate"),
        (["optimizer.jax=optax.adam"], "not read with backend=torch"),
        (["optimizer.torch=torch.optim.SGD", "optimizer.arguments={momentum: -1}"], "Invalid momentum value: -1"),
        (["backend=jax", "optimizer.jax=optax.sgd", "optimizer.arguments={mu: 0.9}"], "unexpected keyword argument"),
    ],
)
def test_a_plan_and_a_run_refuse_an_optimizer_of_another_package_alike(
    suite: Call, words: list[str], says: str
) -> None:
    typed = ["task=resnet50", "optimizer=external", *words]
    code, text = suite("plan", *typed)
    assert code == 2 and says in text, text
    assert suite(*typed, "max_steps=2", "track=none")[1].strip().splitlines()[-1] == text.strip().splitlines()[-1]


@pytest.mark.quick
@pytest.mark.parametrize("words", [["optimizer.torch=no_such_package.Sgd"], ["optimizer.path=nowhere"]])
def test_a_package_that_is_not_here_is_missing(suite: Call, words: list[str]) -> None:
    code, text = suite("plan", "task=resnet50", "optimizer=external", *words)
    assert code == 1 and re.search(
        r"missing: optimizer\.(torch|path)=.*no (module no_such_package here|such folder)", text
    )
    assert "is not counted, because no step can be made here" in text


@pytest.mark.quick
def test_the_smallest_number_of_devices_for_split_tables_is_advised(suite: Call) -> None:
    words = ["plan", "task=dlrm", "scale=paper", "device=cuda"]
    assert "set world=4, so that each device has a part of the tables" in suite(*words)[1]
    code, text = suite(*words, "world=4")
    assert code == 1 and "warning: memory" not in text


@pytest.mark.quick
def test_a_recipe_for_sixteen_classes_is_planned_with_their_images(suite: Call) -> None:
    """8,125 steps of 256 are 100 epochs of at most 16 × 1,300 images, and 1.62 of all of ImageNet."""
    found = planned(suite, "task=caffenet", "scale=gpu")
    assert 100 <= found["epochs"] < 102 and not found["warnings"]


def test_a_job_that_nothing_submits_is_missing(monkeypatch: pytest.MonkeyPatch, suite: Call) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    code, text = suite("plan", "task=resnet50", "launch=slurm", "world=2", "task.bn_group=32", "device=cuda")
    assert code == 1 and text.count("missing:") == 1 and "submitit is not installed; run: pip install" in text


def test_plan_names_missing_devices_and_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = configure.resolve_training(["task=resnet50", "backend=jax", "world=2"])
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr("suite.launch.premises.count_gpus", lambda: 0)
    assert list_missing(run) == []
    assert list_missing(change(run, {"device": "cuda"})) == ["2 GPUs; this machine has none"]
    assert list_missing(change(run, {"world": 1000 * cores}))[0].startswith(
        f"{1000 * cores:,} devices; this machine has {cores} CPU core"
    )
    monkeypatch.setattr("suite.launch.premises.count_gpus", lambda: 1)
    assert list_missing(run) == ["2 GPUs; this machine has 1"]
    monkeypatch.setattr(load.importlib.util, "find_spec", lambda name: None)
    assert "pip install -e '.[jax]'" in list_missing(change(run, {"world": 1}))[0]


def test_plan_counts_visible_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from suite.launch.premises import count_gpus, explain_cpu

    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert count_gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert count_gpus() == 1
    run = configure.resolve_training(["task=resnet50", "device=auto"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    assert "although this machine has a GPU: torch" in str(explain_cpu(run)) and "CUDA build" in str(explain_cpu(run))
    assert explain_cpu(change(run, {"device": "cpu"})) is None
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert explain_cpu(run) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert count_gpus() == 0


def test_planned_bytes_are_those_of_the_ledger(suite: Call, two: Path) -> None:
    result = json.loads((two / "result.json").read_text())
    found = planned(suite, *TINY, "world=2", "comm=truncate16")
    assert found["gradient_bytes_per_step"]["each"] * result["steps"] == result["bytes"]["by_name"]["gradients"] > 0


def test_factors_are_planned_beside_gradients(suite: Call) -> None:
    """K-FAC's, in a mode that shares them out; nobody knows Shampoo's, and SGD has none."""
    words = [*TINY, "world=2", "optimizer.factor_interval=1", "optimizer.inverse_interval=2"]
    found = planned(suite, *words, "optimizer=kfac", "comm=kfac_float21")
    assert found["optimizer_bytes_per_step"]["steps"] == 2 and found["optimizer_bytes_per_step"]["mean"] > 0
    text = suite("plan", *words, "optimizer=kfac", "comm=kfac_float21")[1]
    assert f"{found['optimizer_bytes_per_step']['mean']:,.0f} for the optimizer's factors, mean of 2 steps" in text
    assert "the optimizer's exchanges are not counted" in suite("plan", *TINY, "world=2", "optimizer=shampoo")[1]
    plain = next(line for line in suite("plan", *TINY, "world=2")[1].splitlines() if line.startswith("sent"))
    assert "optimizer" not in plain
    assert "its trials send more" in suite("plan", *TINY, "world=2", "comm=fastest")[1]


def test_a_failed_run_tells_no_step_time(suite: Call, one: Path, tmp_path: Path) -> None:
    copied(one, tmp_path / "runs" / "tiny" / "failed", outcome__kind="failed")
    assert planned(suite, *TINY)["measured"] is None


def test_plan_takes_the_step_time_of_the_most_similar_run(suite: Call, one: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny" / "near").symlink_to(one)
    far = {"spec__config__max_steps": 99, "spec__config__accumulate": 2, "train_seconds": 9.0}
    copied(one, tmp_path / "runs" / "tiny" / "far", **far)
    assert planned(suite, *TINY, "optimizer=kfac")["measured"] is None
    result = json.loads((one / "result.json").read_text())
    near = planned(suite, *TINY, "max_steps=12", "log_every=8", "eval_every=8")["measured"]
    assert near == {
        "result": "runs/tiny/near/result.json",
        "step_seconds": result["train_seconds"] / result["steps"],  # the mean: a refresh is part of it
        "input_share": result["input_seconds"] / result["train_seconds"],
        "differs": ["log_every"],  # evaluations are not part of a step
    }
    assert "as in runs/tiny/near/result.json; that run differs in max_steps" in suite("plan", *TINY)[1]


def test_plan_names_the_longest_part_of_a_step(suite: Call, one: Path, tmp_path: Path) -> None:
    runs, words = tmp_path / "runs" / "tiny", [*TINY, "optimizer=kfac"]
    kfac = configure.resolve_training(words[2:], Path(CONF[1])).plain()
    mine = {f"spec__config__{name}": kfac[name] for name in ("optimizer", "tuning", "schedule")}
    copied(one, runs / "kfac", **mine, steps=10, train_seconds=2.0, input_seconds=0.5)
    assert planned(suite, *words)["parts"] is None
    text = suite("plan", *words)[1]
    command = "suite task=tiny optimizer=sgd backend=torch scale=laptop task.batch_size="
    assert f"bound by    unknown: to tell the model's time from the optimizer's, run this first: {command}" in text
    sgd = {"steps": 4, "train_seconds": 0.4, "spec__config__max_steps": 4}
    copied(one, runs / "sgd", **sgd, input_seconds=0.2)
    parts = planned(suite, *words)["parts"]
    assert parts["seconds"] == pytest.approx({"model": 0.05, "optimizer": 0.1, "input": 0.05})
    assert parts["longest"] == "optimizer" and parts["model"] == "runs/tiny/sgd/result.json"
    text = suite("plan", *words, "max_steps=10")[1]
    assert "bound by    the optimizer: the model takes 50 ms of a mean step" in text
    assert "time        2 s of training, at 200.0 ms a step, 25 % of it waiting" in text
    assert "bound by" not in suite("plan", *words, "network=1gbit", "compute_seconds=0.1")[1]
    assert "as in runs/tiny/sgd/result.json, which differs in precision)" in suite("plan", *words, "precision=tf32")[1]


@pytest.mark.parametrize(
    "words",
    [
        "task=resnet50 optimizer=kfac task.width=4 precision=bfloat16",
        "task=resnet50 optimizer=kfac task.data=shapes task.sources.shapes.options.valid=77 world=2 comm=int8",
        "task=autoencoder optimizer=kfac task.variant=faces threads=2 backend=jax",
        "task=resnet50 optimizer=kfac world=2 comm=kfac_stale",
        "task=autoencoder 'task.widths=[784,64,8]' optimizer=external optimizer.torch=torch.optim.RMSprop "
        "'optimizer.arguments={alpha: 0.9}'",
        "task=bert optimizer=lamb task.sparsity=dynamic task.sparse.block=8",
        "task=resnet50 scale=paper optimizer=kfac data_dir='/some photographs'",
        "experiment=A1-12 data_dir=/photographs",
    ],
)
def test_the_command_that_a_plan_asks_for_makes_a_run_that_it_takes(words: str) -> None:
    """Also where a recipe or an experiment has set the task."""
    run = configure.resolve_training(shlex.split(words))
    for name in ("sgd", run.optimizer.name):
        _, *asked = shlex.split(measured.name_command(run, name, None))
        other = configure.resolve_training(asked)
        assert measured._work(run, name) == measured._work(other, name)
        differing = differing_keys(measured._settings(run), measured._settings(other))
        left = [key for key in differing if not key.startswith(("optimizer.", "schedule.", "comm."))]
        assert left == ["max_steps"] and other.data_dir == run.data_dir
        assert name == "sgd" or len(differing) == 1


def test_the_command_leaves_out_what_follows_from_the_variant() -> None:
    run = configure.resolve_training(["task=dlrm", "task.variant=v2", "task.limit=50"])
    asked = measured.name_command(run, "sgd", None)
    assert asked.endswith("max_steps=100 task.variant=v2 task.limit=50")


def test_plan_loads_no_framework() -> None:
    code, names = loaded("plan", "experiment=A1-12", "--json")
    assert code == 1 and not names & {"torch", "jax", "mlflow"}
