"""Errors of a run, said once and before its ranks start where that can be; every listed preset starts."""

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import engines
import pytest
import small
from tiny_runs import CONF, Call

from suite import load
from suite.contract import UserError
from suite.launch import checks, directories, execution, local, local_ranks
from suite.launch.job import make_task
from suite.launch.premises import describe_task
from suite.settings import configure, recipes
from suite.settings.run import AnyRun

RUN = (*CONF, "+task=tiny", "track=none", "threads=1", "max_steps=4", "eval_every=2", "run_dir=here")
TASKS = sorted(load.find_members("tasks"))
OTHERS = {  # recipes that no task's YAML file names and that are not ResNet-50's
    "bert-lamb-accumulated": "bert",
    "bert-lamb-phase2": "bert",
    "dietrich-dynsparse": "bert",
    "bvlc-caffenet": "caffenet",
    "mlperf-dlrm": "dlrm",
}


@pytest.mark.parametrize(
    "typed, words",
    [
        ("optimizer=kfac optimizer.stale=true", "optimizer.stale=true: each factor has its own interval"),
        ("optimizer=kfac optimizer.fisher=true", "optimizer.fisher=True: must be one of empirical, sampled"),
        ("optimizer=muon optimizer.scale=large", "optimizer.scale=large: must be one of original"),
        ("optimizer=shampoo optimizer.graft=lamb", "optimizer.graft=lamb: must be one of"),
        ("optimizer=soap optimizer.precondition_frequency=0", "optimizer.precondition_frequency=0: must be at least 1"),
        ("optimizer=vogn optimizer.tempering=0.0", "optimizer.tempering=0.0 (from 0.1)"),
        ("+optimizer.turns=1", "optimizer.turns: unknown; there are lr, momentum"),
        ("backend=jax +optimizer.turns=1", "optimizer.turns: unknown; there are lr, momentum"),
        ("optimizer=sm3 optimizer.variant=III", "optimizer.variant=III: must be one of I, II"),
        ("optimizer=kfac_jax", "is written for jax alone; set backend=jax"),
        ("schedule.shape=round", "schedule.shape=round: must be one of constant"),
        ("schedule.shape=polynomial schedule.warmup=0", "needs power; set schedule.power=VALUE"),
        ("+schedule.momentum_follows=true optimizer=adamw", "optimizer=adamw has no momentum"),
        ("comm=int8 comm.algorithm=native", "codec int8 with algorithm native: its payloads cannot be added up"),
        ("comm=int8 comm.inner=int8", "topology flat has one level, and does not use it"),
        ("comm=int8 comm.codec.rounding=up", "comm.codec.rounding=up: must be one of nearest, stochastic"),
        ("comm=leader comm.ranks_per_host=3", "comm.ranks_per_host=3: world=2 is no multiple of it"),
        (
            "comm=leader comm.ranks_per_host=many",
            "comm.ranks_per_host=many: must be a whole number, at least 1, or auto",
        ),
        ("+comm.kinds.lstm.codec=float16", "comm.kinds.lstm: no such kind of layer"),
        ("save=best task.targets=[]", "task.targets=[]: at least one value of the metric is needed"),
        ("task.targets=[80,60]", "task.targets: top1>=60 is easier than top1>=80, which it follows"),
        ("task=resnet50 task.blocks=[]", "task.blocks=[]: must be a list that is not empty"),
        ("task=autoencoder task.widths=[784,0,3]", "task.widths.1=0: must be greater than 0"),
        ("task=autoencoder task.widths=[784]", "task.widths=[784]: must be at least two"),
        ("task=caffenet task.image_size=5", "task.image_size=5: nothing is left of so small an image after conv1"),
        ("task=bert task.sequence=2", "task.sequence=2: must be at least 3"),
        ("task=dlrm task.hots=[-1]", "task.hots.0=-1: must be greater than 0"),
        ("seed=${nothing}", "seed=${nothing}: Interpolation key 'nothing' not found"),
        ("-m seed=range(3,1)", "seed=range(3,1): contains no value; write key=a,b,c"),
        ("decisions=other.json", "decisions=other.json: comm=float32 has no policy"),
        ("decisions=other.json comm=fastest", "decisions=other.json: no record of decisions"),
        ("launch.processes=1", "launch.processes=1: world=2 needs one process per device"),
        ("launch.processes=3 backend=jax", "launch.processes=3: world=2 is not divisible by it"),
        ("threads=100000", "threads=100000: must be at most 1,024 in a process; set threads=auto"),
        ("backend=jax compile=true", "compile=true: backend=jax compiles each step in any case; leave out compile="),
        ("max_steps=5 eval_every=2 target_evaluations=4", "a run of max_steps=5 has 3 evaluations; set fewer"),
        ("launch.processes=two", "launch.processes=two: must be a whole number"),
        ("world=3", "task.batch_size=16: not divisible"),
        ("max_steps=2147483648", "max_steps=2147483648: jax counts updates in 32 bits; set at most 2147483647"),
        ("world=1 backend=jax comm=fastest comm.policy.repeats=1", "comm.policy.repeats=1"),
        ("optimizer=external optimizer.torch=torch.optim.LBFGS", "asks for a closure"),
    ],
)
def test_no_rank_starts_where_that_can_be_known(
    suite: Call, monkeypatch: pytest.MonkeyPatch, typed: str, words: str
) -> None:
    def started(*_: Any, **__: Any) -> int:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(local, "run_ranks", started)
    monkeypatch.setattr(execution, "execute_job", started)
    code, said = suite(*RUN, *(["world=2"] if "world=" not in typed else []), *typed.split())
    assert code == 2 and words in said and said.count("suite: ") == 1, said
    assert not list(Path().iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "typed, words",
    [
        ("world=2 backend=jax comm=bfloat16 comm.algorithm=native", "XLA on CPUs sends bfloat16 as float32"),
        ("world=2 backend=jax launch.processes=2 comm=bfloat16 comm.algorithm=native", "XLA on CPUs sends bfloat16"),
    ],
)
def test_what_only_ranks_know_is_said_once_and_leaves_nothing(suite: Call, typed: str, words: str) -> None:
    Path("here").mkdir()
    Path("here/notes").write_text("the user's own")
    code, said = suite(*RUN, *typed.split())
    assert code == 2 and words in said and said.count("suite: ") == 1 and "suite: rank" not in said, said
    assert [path.name for path in Path("here").iterdir()] == ["notes"], "no start is left, and no other file is lost"
    Path("here/notes").unlink()
    code, said = suite(*RUN, *typed.split())
    assert code == 2 and not Path("here").exists()


@pytest.mark.parametrize("reported, names", [(True, 0), (False, 1)])
def test_a_rank_that_jax_aborts_is_named_only_if_no_rank_has_said_why(
    reported: bool, names: int, capsys: pytest.CaptureFixture[str]
) -> None:
    children = [SimpleNamespace(returncode=code, poll=lambda code=code: code) for code in (2, -signal.SIGABRT)]
    assert local_ranks._exit_code(children, quiet=reported) == 2  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("suite: rank 1 was killed by SIGABRT") == names


def test_messages_of_ranks_that_differ_are_all_said() -> None:
    hears, tells = os.pipe()
    os.set_blocking(hears, False)
    assert local_ranks._reported(hears) == ""
    for rank, error in ((1, "no disk"), (0, "no GPU"), (2, "no GPU")):
        os.write(tells, json.dumps({"rank": rank, "error": error}).encode() + b"\n")
    assert local_ranks._reported(hears) == "rank 1: no disk\nsuite: rank 0, 2: no GPU"
    os.close(hears)
    os.close(tells)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_ranks_that_a_signal_ends_while_they_load_are_interrupted(name: str, code: int) -> None:
    import subprocess
    import sys

    die = f"import os, signal; signal.signal(signal.{name}, signal.SIG_DFL); os.kill(os.getpid(), signal.{name})"
    children = [subprocess.Popen([sys.executable, "-c", die]) for _ in range(2)]
    for child in children:
        child.wait()
    assert local_ranks._exit_code(children, quiet=False) == code


def test_a_rank_that_dies_beside_one_that_rejects_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess

    codes = ("2", "2", "$(kill -KILL $$)")
    children = [subprocess.Popen(["sh", "-c", f"exit {code}"]) for code in codes]
    for child in children:
        child.wait()
    assert local_ranks._exit_code(children, quiet=True) == 2
    assert capfd.readouterr().err == "suite: rank 2 was killed by SIGKILL\n"


def test_a_run_that_has_made_a_step_is_kept(tmp_path: Path) -> None:
    for name, log in (("step", '{"event": "step", "step": 1}\n'), ("damaged", "{\n\n")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "events.jsonl").write_text(log)
        directories.withdraw_start(folder)
        assert (folder / "events.jsonl").exists(), name


# ------------------------------------------------------------------------------------- every listed preset starts
def starts(*typed: str) -> AnyRun:
    """Return the run of a command whose data may be absent, checked as a run's is."""
    config = configure.resolve(typed)
    configure.reject_unread(config, typed)
    task, _ = describe_task(config)
    checks.check_run(config, task)
    return config


def named(preset: str) -> list[str]:
    """Return the optimizer that a preset of comm names, if it does."""
    node = load.read_preset("comm", preset)
    return ["optimizer=kfac"] if "optimizer" in node else []


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", load.list_options("comm"))
def test_every_mode_starts(name: str) -> None:
    config = starts("+task=resnet50", f"comm={name}", "world=2", *named(name))
    checks.check_run(engines.change(config, {"backend": "jax"}), make_task(config))


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_mode_that_names_an_optimizer_makes_a_step(backend: str) -> None:
    """A mode that names an optimizer makes a step; tests/test_pairs.py tries the modes that name none."""
    for name in filter(named, load.list_options("comm")):
        own = [f"optimizer.{key}={value}" for key, value in load.read_preset("comm", name)["optimizer"].items()]
        words = [f"comm={name}", f"backend={backend}", "device=cpu", *named(name), *own]  # `own` replaces the recipe's
        config = small.small("autoencoder", None, *words)
        (loss,) = engines.advance(engines.engine(config, make_task(config)), range(1))
        assert loss == loss


def recipe_lines() -> list[Any]:
    """For each recipe the words that choose it, with the optimizer that it names or was tuned for."""
    every = load.list_options("recipe")
    places = {name: [f"+task={OTHERS.get(name, 'resnet50')}", "scale=paper"] for name in every}
    for task, scale in itertools.product(TASKS, ("gpu", "paper")):
        for optimizer, name in recipes.list_published(task, scale).items():
            places[name] = [f"+task={task}", f"scale={scale}", f"optimizer={optimizer}"]
    for name in every:
        if name.endswith("-laptop"):
            task, optimizer = name.removesuffix("-laptop").rsplit("-", 1)
            places[name] = [f"+task={task}", f"optimizer={optimizer}"]
    seen: set[str] = set()  # the first of each task's; the others are tried by `make test-all`
    lines = []
    for name in every:
        marks = [pytest.mark.slow] if places[name][0] in seen else []
        seen.add(places[name][0])
        lines.append(pytest.param([*places[name], f"recipe={name}"], id=name, marks=marks))
    return lines


@pytest.mark.parametrize("words", recipe_lines())
def test_every_recipe_starts(words: list[str]) -> None:
    config = starts(*words, "device=cpu")
    assert config.tuning.source


@pytest.mark.parametrize("name", load.list_options("experiment"))
def test_every_experiment_starts(name: str) -> None:
    starts(f"experiment={name}")


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", load.list_options("optimizer"))
def test_every_optimizer_starts(name: str) -> None:
    own = {"external": ["optimizer.torch=torch.optim.SGD"], "kfac_jax": ["backend=jax"]}.get(name, [])
    starts("+task=resnet50", f"optimizer={name}", *own)


def test_a_baseline_starts() -> None:
    for name in load.list_options("baseline"):
        task = load.read_preset("baseline", name)["task"]
        assert starts(f"+task={task}", f"baseline={name}")


def test_a_plan_rejects_what_a_run_rejects(suite: Call) -> None:
    typed = ("+task=resnet50", "optimizer=muon", "optimizer.scale=large")
    assert suite("plan", *typed) == suite(*typed)
    with pytest.raises(UserError, match="is written for jax alone"):
        load.check_backend("suite.optimizers.external.kfac_jax", "torch")


def test_the_outside_members_are_checked_too(suite: Call) -> None:
    assert conftest.OUTSIDE.is_dir()
    assert suite("plan", *CONF, "+task=tiny", "optimizer=secant", "comm=truncate16")[0] == 0
