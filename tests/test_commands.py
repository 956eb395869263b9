"""Every command that README, CONTRIBUTING, docs/ and the cards print: run as printed where it is cheap, else checked as
far as it goes before its ranks start. WAYS says which is done to which, and why."""

import contextlib
import importlib.util
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import commands
import pytest
import test_docs
from tiny_runs import Call
from written import write_jpeg

from suite import cli
from suite.contract import MissingError, UserError
from suite.counters import golden
from suite.launch import checks, download, external, premises, slurm
from suite.regress.sides import OVERRIDE, REQUIREMENT
from suite.settings import configure
from suite.settings.launch import ExternalLaunch, SlurmLaunch
from suite.settings.overrides import CHOICES
from suite.settings.run import BaselineRun
from suite.verbs import counters, regress, tune

EVERY = commands.every()
NOT_OURS = ("distrax", "immutabledict")  # packages that only kfac-jax wants
SLOW = ("suite plan task=bert task.variant=enlarged",)
A_CLAIM = "lessard2016-heavy-ball-cycle"
REPLACED = {"init_from=RUN": ""}  # placeholders of files that no run here has made


class Way(NamedTuple):
    """A check of commands that match, and the reason for it."""

    pattern: str
    check: Callable[[str, Call], None]
    reason: str


def runs(text: str, suite: Call) -> None:
    """Run it in a folder where TEXT, LOGS, IMAGES and RUN lie. A plan may find that data or devices are missing."""
    code, said = suite(*shlex.split(text)[1:])
    assert code == 0 or (code == 1 and text.startswith("suite plan")), said
    assert said.strip()


def composes(text: str, suite: Call) -> None:
    """Compose and check each run of it; of values that are swept, the first and the last."""
    words = [word for word in shlex.split(text)[1:] if word != "-m"]
    for overrides in ends(words):
        starts(overrides)


def ends(words: list[str]) -> list[list[str]]:
    """A sweep's first run, and that with another value of each axis: every choice of a group, else the last value."""
    axes = [re.fullmatch(r"([\w.]+)=([^\[{]*,.*)", word) for word in words]
    first = [f"{axis[1]}={axis[2].split(',')[0]}" if axis else word for axis, word in zip(axes, words, strict=True)]
    found = [first]
    for at, axis in enumerate(axes):
        values = axis[2].split(",") if axis else []
        others = values[1:] if axis and axis[1] in CHOICES else values[1:][-1:]
        found += [[*first[:at], f"{axis[1] if axis else ''}={value}", *first[at + 1 :]] for value in others]
    return found


def starts(overrides: list[str]) -> None:
    """All that a run checks before its ranks start, but for data and packages that are not here."""
    typed = [word for word in (REPLACED.get(word, word) for word in overrides) if word]
    config = configure.resolve(typed)
    configure.reject_unread(config, typed)
    task, _ = premises.describe_task(config)
    with contextlib.suppress(MissingError):
        checks.check_run(config, task)
    if isinstance(config, BaselineRun):
        return
    if isinstance(config.launch, ExternalLaunch):
        external.check_launch(config)
    elif isinstance(config.launch, SlurmLaunch):
        assert slurm.request_resources(config)["nodes"] >= 1
    else:
        checks.check_processes(config)


def inside(text: str, suite: Call) -> None:
    """Check the command that it starts on each host, with the variables that each process is given."""
    flags = dict(re.findall(r"--([\w-]+)[= ](\S+)", text))
    ranks = int(flags.get("nnodes", flags.get("hosts", 1))) * int(flags.get("nproc-per-node", 1))
    given = {"RANK": 0, "WORLD_SIZE": ranks, "MASTER_ADDR": "node0", "MASTER_PORT": 1}
    given |= {"JAX_PROCESS_ID": 0, "JAX_NUM_PROCESSES": ranks, "JAX_COORDINATOR_ADDRESS": "node0:1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, str(value))
        starts(shlex.split(re.split(r"-m suite |-- suite ", text)[-1]))


def tunes(text: str, suite: Call) -> None:
    """Compose its runs."""
    overrides, counts = tune._split(shlex.split(text)[2:])
    assert counts["trials"] and counts["seeds"]
    starts(overrides)


def named(text: str, suite: Call) -> None:
    """Its verb is there; a file that is not is named."""
    _, verb, *words = text.split()
    assert verb in cli.VERBS
    if words:
        code, said = suite(verb, *words)
        assert code == 2 and said.startswith(f"suite: {words[0]}: "), said


def lists(text: str, suite: Call) -> None:
    """List its claims; a user's file of claims is left out, and one claim stands for all."""
    words = [word for word in shlex.split(text)[2:] if not word.endswith(".yaml") and word != "--list"]
    claims = [] if words and not words[0].startswith("-") else [A_CLAIM]
    code, said = suite("reproduce", *claims, *words, "--list")
    assert code in (0, 3) and "min: minutes" in said, said


def regresses(text: str, suite: Call) -> None:
    """Its options are accepted, its benchmarks compose, and its sides are of a known kind."""
    chosen = regress.make_parser().parse_args(shlex.split(text)[2:])
    if chosen.history:
        return  # tests/regress/test_history.py runs it
    if chosen.benchmarks is None:
        for benchmark in regress.benchmarks_of(chosen, None):
            configure.resolve(benchmark.overrides)
    for word in shlex.split(f"{chosen.a} {chosen.b}"):
        commit = re.fullmatch(r"HEAD(~\d+)?|main|A|B", word)
        saved = re.fullmatch(r"reports|runs/\w+", word)  # tests/regress/test_saved.py compares them
        assert commit or saved or word == "." or REQUIREMENT.fullmatch(word) or OVERRIDE.fullmatch(word), word


def counts(text: str, suite: Call) -> None:
    """Its options are accepted, and the committed file has its entries; their runs compose."""
    chosen = counters.make_parser().parse_args(shlex.split(text)[2:])
    entries = {entry["name"]: entry for entry in golden.read_counters(commands.ROOT / "results" / "counters.yaml")}
    for name in chosen.names:
        configure.resolve(shlex.split(entries[name]["run"]))


def there(text: str, suite: Call) -> None:
    """Its file or module is there."""
    word = next(word for word in text.split()[1:] if not word.startswith("-"))
    if word.endswith(".py"):
        compile((commands.ROOT / word).read_text(), word, "exec")
    elif "/" in word:
        assert (commands.ROOT / word / "__main__.py").is_file()
        if word == "tests/calibration":
            assert (commands.ROOT / word / f"{text.split()[2]}.py").is_file()
        if " up " in text:
            from testbed import network

            assert network.bits(text.rpartition("--rate ")[2]) > 0
    else:
        assert importlib.util.find_spec(word)


def target(text: str, suite: Call) -> None:
    """Check that the Makefile has the target."""
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(text)[1:]], cwd=commands.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def evaluates(text: str, suite: Call) -> None:
    """Run this line of Python."""
    exec(shlex.split(text)[2], {})


def packages(text: str, suite: Call) -> None:
    """Its extras are declared, its constraints are files, and other packages are dependencies or stand in NOT_OURS."""
    project = tomllib.loads((commands.ROOT / "pyproject.toml").read_text())["project"]
    words = [word for word in shlex.split(text)[2:] if word != "-e"]
    while "-c" in words:
        at = words.index("-c")
        assert (commands.ROOT / words[at + 1]).is_file()
        del words[at : at + 2]
    extras = [extra for word in words for extra in ",".join(re.findall(r"^\.\[(.+)\]$", word)).split(",") if extra]
    assert set(extras) <= set(project["optional-dependencies"])
    others = {re.split(r"[<>=\[]", word)[0] for word in words if not word.startswith(".[")}
    ours = {re.split(r"[<>=]", name)[0] for extra in project["optional-dependencies"].values() for name in extra}
    assert others <= ours | set(NOT_OURS)


def elsewhere(text: str, suite: Call) -> None:
    """Another test runs it."""


def fetches(text: str, suite: Call) -> None:
    """Run it without its downloads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "fetch_file", lambda file, base, folder: None)
        runs(text, suite)


WAYS = [
    Way("python -c ", evaluates, "it prints what is there"),
    Way(r"suite (task=)?<\w+>", elsewhere, "a pattern, no command"),
    Way(r"suite --config-dir conf |suite new |pytest test_signs.py", elsewhere, "tests/test_contributing.py runs it"),
    Way("|".join(f"{re.escape(text)}$" for text in test_docs.SUITE), elsewhere, "tests/test_docs.py runs it"),
    Way(r"suite data \w+ --fetch", fetches, "downloads: tests/verbs/test_data_fetch.py fetches from a server"),
    Way(
        r"suite (data \w+( --from|$)|list|plan \S|(submit|export|report) \S|board --out|reproduce .*--again)|"
        r"suite .* --cfg job",
        runs,
        "cheap: runs as printed",
    ),
    Way(r"suite board .*--serve", elsewhere, "serves until it is stopped: tests/test_site_command.py serves a site"),
    Way(
        r"suite reproduce \S",
        lists,
        "measures for minutes: its claims are listed, tests/verbs/test_reproduce.py measures",
    ),
    Way(r"suite regress \S", regresses, "measures for minutes: tests/regress runs it on commits that take no time"),
    Way(r"suite counters \S", counts, "counts for minutes: tests/regress/test_counters.py counts small runs"),
    Way(r"suite tune \S", tunes, "trains for many minutes: its runs are composed"),
    Way(r"suite \w+( [A-Z]+(\.json)?)?$", named, "names a verb, or needs a result"),
    Way(r"suite ", composes, "trains for minutes, or with data and devices that are not here: checked before ranks"),
    Way(r"torchrun --nproc-per-node 2 train.py$", elsewhere, "tests/partition/test_page.py runs it"),
    Way(r"torchrun |python tests/testbed run ", inside, "needs several hosts: each rank's command is checked"),
    Way(r"(python|pytest) ", there, "takes minutes, a network or idle cores: its file or module is there"),
    Way(r"make ", target, "builds, tests or measures for minutes: the Makefile has the target"),
    Way(r"pip install ", packages, "changes the environment: the extras and packages are known"),
]


def way(text: str) -> Way:
    return next(one for one in WAYS if re.match(one.pattern, text))


@pytest.fixture
def material(tmp_path: Path) -> None:
    """Write what stands for TEXT, LOGS, IMAGES, RUN and doubt.yaml: documents, parallel text, click logs, images,
    a run, and a doubt among the results of a checkout."""
    results = tmp_path / "results" / "runs" / "resnet50"
    results.mkdir(parents=True)
    (tmp_path / "RUN").mkdir()
    committed = commands.ROOT / "results" / "runs" / "resnet50"
    doubted = "digits-sgd-jax-s2-4e9922ceade1.json"
    (results / doubted).write_text((committed / doubted).read_text())
    (tmp_path / "RUN" / "result.json").write_text(next(committed.glob("digits-sgd-torch-s0-*.json")).read_text())
    doubt = (commands.ROOT / "docs" / "entries.md").read_text().partition("    who: ")[2].partition("\n\n")[0]
    (tmp_path / "doubt.yaml").write_text(textwrap.dedent(f"    who: {doubt}\n"))
    sentences = [f"The cat number {number} sat on the mat. Nobody saw the dog.\n\n" for number in range(400)]
    text, logs = tmp_path / "TEXT", tmp_path / "LOGS"
    write_jpeg(tmp_path / "IMAGES", train=16, valid=16)
    text.mkdir()
    logs.mkdir()
    (text / "documents.txt").write_text("".join(sentences))
    for split in ("train", "valid"):
        for language in ("en", "fr"):
            (text / f"{split}.{language}").write_text("A sentence in two languages.\nAnother one.\n" * 20)
    (logs / "train.txt").write_text(("1" + "\t5" * 13 + "\tab" * 26 + "\n") * 140)


@pytest.mark.usefixtures("material")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=command.text, marks=pytest.mark.slow if command.text.startswith(SLOW) else [])
        for command in EVERY
    ],
)
def test_it_works(command: commands.Command, suite: Call) -> None:
    way(command.text).check(command.text, suite)


def test_every_way_is_used_and_has_a_reason() -> None:
    assert {way(command.text) for command in EVERY} == set(WAYS)
    assert all(one.reason for one in WAYS)


def test_commands_are_found_wherever_they_stand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Run `suite list\noptimizers` or `make run`.\n\n    suite plan a=1     words\n    torchrun \\\n"
        "        -m suite b=2\n\n"
        "```console\n$ suite board\nsuite: not a command\n```\n\n    conf: text\n    suite: rank 0: lost\n"
    )
    in_blocks = ["suite plan a=1", "torchrun -m suite b=2", "suite board"]
    assert commands.printed(page) == [*in_blocks, "suite list optimizers", "make run"]
    assert len(EVERY) > 80
    assert {command.place for command in EVERY} >= {
        "README.md",
        "CONTRIBUTING.md",
        "docs/kfac.md",
        "tasks/bert/CARD.md",
    }


@pytest.mark.parametrize(
    "text",
    [
        "suite +task=resnet50 optimizer=kfak",
        "suite -m +task=resnet50 comm=float32,fp9",
        "suite -m +task=resnet50 optimizer=shampoo optimizer.graft=sgd,adamax",
        "suite +task=resnet50 launch=slurm launch.nodes=3 world=8 task.bn_group=8",
        "torchrun --nnodes=2 --nproc-per-node=4 -m suite +task=resnet50 task.bn_group=8 world=4 launch=torchrun",
        "suite plan +task=resnet50 recipe=spngd-33k",
        "suite data bert --from TEXT --to DIR task.sequenze=64",
        "suite tune +task=resnet50 recipe=untuned",
        "suite verifi",
        "make rum",
        "pip install -e '.[tourch]'",
        "python tests/none.py",
    ],
)
def test_a_command_that_does_not_work_is_noticed(text: str, suite: Call) -> None:
    with pytest.raises((UserError, AssertionError, OSError)):
        way(text).check(text, suite)
