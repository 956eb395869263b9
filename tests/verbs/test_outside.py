"""Verbs with a task and an optimizer from outside the tree whose YAML files have alternatives of every kind."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from tiny_runs import CONF, Call

from suite.contract import UserError
from suite.entries.command import list_contradicting_words, show_command
from suite.launch.job import make_header, make_task
from suite.record import record
from suite.settings import configure
from suite.settings.overrides import add_directory, render_command, split_directory

TINIER = (*CONF, "task=tinier", "threads=1")
SHORT = (*TINIER, "track=none", "max_steps=2", "eval_every=2")


def runs(folder: Path) -> list[tuple[str, int]]:
    """Return the optimizer and the number of targets of each run below a folder."""
    found = [json.loads(path.read_text()) for path in folder.glob("runs/*/*/result.json")]
    return sorted((result["spec"]["optimizer"], len(result["targets"])) for result in found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [("secant", 1)]),
        (["task.variant=split", "optimizer=sgd"], [("sgd", 1)]),
        (["-m", "task.data=easy,hard"], [("secant", 1), ("secant", 2)]),
    ],
    ids=["run", "run-of-a-variant", "sweep"],
)
def test_runs_take_their_values_from_the_alternatives(
    suite: Call, tmp_path: Path, words: list[str], expected: list[tuple[str, int]]
) -> None:
    code, text = suite(*SHORT, *words)
    assert code == 0, text
    assert runs(tmp_path) == expected


def test_a_plan_and_a_list_of_data_read_the_alternatives(suite: Call) -> None:
    code, text = suite("plan", *TINIER, "scale=gpu", "device=cpu")
    assert code == 0 and "steps       40 at most, of 32 samples" in text and "top1>=80" in text, text
    code, text = suite("data", "tinier", *CONF)
    assert code == 0 and text.splitlines()[:2] == [
        f"{name}  generated, by seed   tiny: 1,000,000 train, 22 valid; generated:tiny@1" for name in ("easy", "hard")
    ]


def test_tune_searches_the_range_of_an_outside_optimizer(suite: Call, tmp_path: Path) -> None:
    words = ("max_steps=1", "trials=2", "seeds=1", "runs=2", "--misses", "--out", "mine.yaml")
    code, text = suite("tune", *TINIER, *words)
    assert code == 1 and "written: mine.yaml" in text, text
    tried = yaml.safe_load((tmp_path / "mine.yaml").read_text())["tuned"]["easy"]["tried"]
    assert tried[0]["optimizer.lr"] == 0.1 and 0.01 <= tried[1]["optimizer.lr"] <= 1.0


OWN = "my conf"  # a shell would split it


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Copy the outside configuration into the working directory."""
    return shutil.copytree(CONF[1], tmp_path / OWN)


def composes(command: str) -> None:
    """Check that a printed command names its directory, and what it needs."""
    program, *words = shlex.split(command)
    directory, overrides = split_directory(words)
    assert program == "suite" and directory == Path(OWN)
    configure.reject_unread(configure.resolve(overrides, directory), overrides)


@pytest.mark.parametrize("words", [(), ("-m", "seed=0,1")], ids=["run", "sweep"])
def test_the_command_of_a_result_finds_it_when_typed(
    suite: Call, tmp_path: Path, own: Path, words: tuple[str, ...]
) -> None:
    code, text = suite("--config-dir", OWN, *SHORT[2:], *words)
    assert code == 0, text
    results = [record.read_result(path) for path in tmp_path.glob("runs/*/*/result.json")]
    assert len(results) == (2 if words else 1)
    for result in results:
        assert show_command(result) == result.command
        assert list(list_contradicting_words(result.model_copy(update={"command": f"{result.command} seed=9"})))
        code, text = suite(*shlex.split(result.command)[1:])
        assert code == 0 and "this run has a result already" in text, text


def test_the_commands_of_plans_and_lists_of_data_can_be_typed(suite: Call, own: Path) -> None:
    text = suite("plan", f"--config-dir={OWN}", *TINIER[2:], "network=1gbit")[1]
    composes(text.partition("run this first: ")[2].splitlines()[0])
    text = suite("data", "tinier", "--config-dir", OWN)[1]
    composes(text.splitlines()[-1].removeprefix("to choose: ").replace("easy|hard", "hard"))


def test_the_command_of_a_tuned_recipe_can_be_typed(suite: Call, tmp_path: Path, own: Path) -> None:
    words = (*TINIER[2:], "max_steps=1", "trials=1", "seeds=1", "runs=2", "--misses")
    suite("tune", "--config-dir", OWN, *words)
    path = own / "recipe" / "tinier-secant-laptop.yaml"
    command = yaml.safe_load(path.read_text())["tuned"]["easy"]["command"]
    made = sorted(tmp_path.glob("runs/*/*"))
    code, text = suite(*shlex.split(command)[1:])
    assert code == 1 and f"written: {OWN}/recipe/{path.name}" in text, text
    assert sorted(tmp_path.glob("runs/*/*")) == made, "finished trials are found again"


@pytest.mark.quick
def test_the_commands_in_errors_can_be_typed(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    words = ["task=tinier", "data_dir=here"]
    with pytest.raises(UserError, match=r"or see: suite data tinier --config-dir 'my conf'$"):
        configure.reject_unread(configure.resolve(words, Path(OWN)), words, Path(OWN))
    with pytest.raises(UserError, match=r"use suite task=tiny baseline=means --config-dir 'my conf'$"):
        configure.resolve(["task=tinier", "baseline=means"], Path(OWN))


@pytest.mark.quick
def test_a_command_without_a_directory_stays_as_it_was_typed() -> None:
    words = ["task=resnet50", "optimizer=kfac"]
    assert add_directory(words, None) == words
    assert render_command("suite task=resnet50", None) == "suite task=resnet50"
    run = configure.resolve(["task=resnet50"])
    header = make_header(run, make_task(run), 1, add_directory(words, None))
    assert header.command == "suite task=resnet50 optimizer=kfac"
