"""`suite regress`: sides, exit codes, reports, and the search for a commit, with runs that take no time."""

import ast
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from repositories import git, repository

from suite.contract import UserError
from suite.regress import sample, sides
from suite.regress.benchmarks import METRICS, Benchmark, read_benchmarks
from suite.regress.sample import RunFailedError, Sampler, in_turns
from suite.regress.sides import Side, build_side
from suite.verbs import regress

Call = Callable[..., tuple[int, str]]
RUN = ("--run", "+task=any")


@pytest.fixture
def history(suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Six commits; the fourth makes a step 10 % slower. The working directory is their repository."""
    folder = tmp_path / "repository"
    commits = repository(folder, [0.1, 0.1, 0.1, 0.11, 0.11, 0.11])
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sides, "CACHE", tmp_path / "cache")
    return commits


def test_a_slower_commit_is_found_and_reported(history: list[str], suite: Call, tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"report.{kind}" for kind in ("json", "junit", "markdown")}
    options = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
    code, text = suite("regress", "HEAD~3", "HEAD", *options, *RUN)
    assert code == 3 and "slower" in text and history[2][:12] in text
    report = json.loads(paths["json"].read_text())
    [entry] = report["benchmarks"]
    assert entry["answer"] == "slower" and 1.08 < entry["verdict"]["shown"]["ratio"] < 1.12
    assert len(entry["first"]) >= 4 and len(entry["second"]) >= 4
    [case] = ElementTree.fromstring(paths["junit"].read_text()).findall("testcase")
    assert case.find("failure") is not None
    assert "| **slower** |" in paths["markdown"].read_text()
    assert git(Path.cwd(), "worktree", "list").count("\n") == 0, "the second working tree is removed"


def test_equal_commits_pass(history: list[str], suite: Call) -> None:
    code, text = suite("regress", "HEAD~1", *RUN)
    assert code == 0 and "not slower" in text


KILLED = """
import sys, time
from pathlib import Path
from suite.regress import sides
sides.CACHE = Path(sys.argv[1])
with sides.check_out(Path(sys.argv[2]), sys.argv[3]):
    print("made", flush=True)
    time.sleep(600)
"""


def test_the_tree_of_a_killed_command_is_deleted_and_no_other(history: list[str]) -> None:
    with sides.check_out(Path.cwd(), history[0]) as used:
        command = [sys.executable, "-c", KILLED, str(sides.CACHE), str(Path.cwd()), history[1]]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/")
        assert child.stdout and child.stdout.readline() == b"made\n"
        child.kill()
        child.wait()
        assert len(list(used.parent.glob("*-*/seconds.txt"))) == 2
        with sides.check_out(Path.cwd(), history[2]) as tree:
            assert {used, tree} == {path for path in used.parent.iterdir() if path.is_dir()}
    assert [path.name for path in used.parent.iterdir()] == ["making"]
    assert git(Path.cwd(), "worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_overrides_and_the_working_tree_are_sides(history: list[str], suite: Call) -> None:
    assert suite("regress", ".", "factor=1.2", *RUN)[0] == 3
    Path("seconds.txt").write_text("0.2")
    assert suite("regress", "HEAD", *RUN)[0] == 3


@pytest.mark.parametrize("metric", ["start", "step"])
def test_other_metrics(metric: str, history: list[str], suite: Call) -> None:
    code, text = suite("regress", ".", "--rounds", "4", "--metric", metric, *RUN)
    assert code == 0 and metric in text and "round 4" in text


def test_a_failed_run_is_an_error_with_its_output(history: list[str], suite: Call, tmp_path: Path) -> None:
    code, text = suite("regress", ".", "broken=1", "--junit", str(tmp_path / "junit.xml"), *RUN)
    assert code == 1 and "this run is broken" in text and "side broken=1" in text
    [case] = ElementTree.parse(tmp_path / "junit.xml").getroot().findall("testcase")
    assert case.find("error") is not None


def test_a_metric_that_a_run_lacks_is_named(history: list[str]) -> None:
    with build_side(".", print) as side, pytest.raises(UserError, match="have no compile; choose another metric"):
        Sampler()([side], Benchmark("mine", ("+task=any",), "compile"), None)


def test_a_run_that_takes_too_long_is_killed(history: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("suite/__main__.py").write_text("import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    monkeypatch.setattr(sample, "LIMIT", 3.0)
    with build_side(".", print) as side, pytest.raises(RunFailedError, match=r"took longer than 3 s:\nwaiting"):
        in_turns([side, side], Benchmark("mine", ("+task=any",)), None, 0.1)


BUSY = """
import sys, time
from pathlib import Path
folder = Path(next(word for word in sys.argv if word.startswith("run_dir=")).partition("=")[2])
moments = []
while time.process_time() < 1.5:
    moments.append(time.monotonic())
folder.mkdir(parents=True)
Path(sys.argv[-1].partition("=")[2]).write_text(repr((moments[0], max(b - a for a, b in zip(moments, moments[1:])))))
(folder / "result.json").write_text('{"outcome": {"kind": "exhausted"}, "step_seconds": {"p50": 1.0}}')
"""


def test_the_sides_of_a_round_run_in_turns(history: list[str]) -> None:
    """Each process is stopped for about a turn of the other one, and both exist at once."""
    Path("suite/__main__.py").write_text(BUSY)
    notes = [Path("a").absolute(), Path("b").absolute()]
    with build_side(f".  note={notes[0]}", print) as a, build_side(f". note={notes[1]}", print) as b:
        assert in_turns([a, b], Benchmark("mine", ("+task=any",)), 0, 0.2) == [1.0, 1.0]
    (first, pause), (second, other) = (ast.literal_eval(note.read_text()) for note in notes)
    assert abs(first - second) < 1.0 and min(pause, other) > 0.15


SLOW = """
import sys, time
from pathlib import Path
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
folder = Path(words["run_dir"])
folder.mkdir(parents=True)
while time.process_time() < float(words["start"]):
    pass
first = time.monotonic()
(folder / "events.jsonl").write_text('{"event": "started", "step": 0}\\n{"event": "step", "step": 1}\\n')
while time.process_time() < float(words["start"]) + 0.6:
    pass
Path(words["note"]).write_text(repr((first, time.monotonic())))
(folder / "result.json").write_text('{"outcome": {"kind": "exhausted"}, "step_seconds": {"p50": 1.0}}')
"""


@pytest.mark.parametrize("starts", [(0.1, 1.2), (1.2, 0.1)])
def test_a_side_that_starts_sooner_waits_until_both_train(starts: tuple[float, float], history: list[str]) -> None:
    Path("suite/__main__.py").write_text(SLOW)
    notes = [Path(name).absolute() for name in "ab"]
    a, b = (f". start={start} note={note}" for start, note in zip(starts, notes, strict=True))
    with build_side(a, print) as one, build_side(b, print) as other:
        assert in_turns([one, other], Benchmark("mine", ("+task=any",)), 0, 0.1) == [1.0, 1.0]
    (first, end), (second, last) = (ast.literal_eval(note.read_text()) for note in notes)
    assert max(first, second) < min(end, last)


def test_a_turn_has_several_steps(history: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal tells how long a step takes; the other metrics and several ranks take no turns."""
    calls: list[tuple[int, float]] = []

    def note(sides: Sequence[Side], benchmark: Benchmark, core: int | None, turn: float) -> list[float]:
        calls.append((len(sides), turn))
        return [0.5 for _ in sides]

    monkeypatch.setattr(sample, "in_turns", note)
    with build_side(".", print) as side, build_side(". world=2", print) as several:
        sampler, both = Sampler(), [side, side]
        for _ in range(2):
            sampler(both, Benchmark("mine", ("+task=any",)), 0)
        assert calls == [(1, sample.LIMIT), (2, 5.0), (2, 5.0)]
        calls.clear()
        sampler(both, Benchmark("mine", ("+task=any",), "start"), 0)
        sampler([side, several], Benchmark("mine", ("+task=any",)), 0)
        assert calls == [(1, sample.LIMIT)] * 4


def test_a_failure_ends_the_other_process_of_a_round(history: list[str]) -> None:
    Path("suite/__main__.py").write_text(
        "import sys, time\nsys.exit('broken') if 'x=1' in sys.argv else time.sleep(60)\n"
    )
    began = time.monotonic()
    with (
        build_side(".", print) as a,
        build_side(". x=1", print) as b,
        pytest.raises(RunFailedError, match=r"x=1.*:\nbroken"),
    ):
        in_turns([a, b], Benchmark("mine", ("+task=any",)), None, 0.1)
    assert time.monotonic() - began < 30


PARENT = """
import os, sys
from pathlib import Path
from suite.regress.benchmarks import Benchmark
from suite.regress.sample import Run
from suite.regress.sides import Side
run = Run(Side(".", Path(sys.executable), Path(sys.argv[1])), Benchmark("mine", ("+task=any",)), None)
run.stop()
print(run._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_stopped_process_ends_with_the_command(history: list[str]) -> None:
    Path("suite/__main__.py").write_text("import time\ntime.sleep(60)\n")
    root = str(Path(sides.__file__).parents[2])
    command, environment = [sys.executable, "-c", PARENT, str(Path.cwd())], os.environ | {"PYTHONPATH": root}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=root)
    until = time.monotonic() + 10
    while Path(f"/proc/{done.stdout.strip()}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert done.stdout.strip() and not Path(f"/proc/{done.stdout.strip()}").exists()


@pytest.mark.slow
def test_bisect_finds_the_commit(history: list[str], suite: Call) -> None:
    code, text = suite("regress", "--bisect", history[0], "HEAD", *RUN)
    assert code == 3 and f"first slower commit: {history[3][:7]}" in text and "commit 3" in text
    assert "round 4" in text, "progress is printed"


@pytest.mark.slow
def test_bisect_keeps_the_overrides_of_the_sides(history: list[str], suite: Call) -> None:
    """Without `factor=2`, a commit in the middle would be twice as fast as both sides."""
    code, text = suite("regress", "--bisect", f"{history[0]} factor=2", "HEAD factor=2", *RUN)
    assert code == 3 and "commit 3" in text
    side = Side("HEAD factor=1 torch==2.14", Path("python"), Path())
    assert sides.change_commit(side, "abc") == "abc factor=1 torch==2.14"


def test_bisect_says_that_an_alarm_cannot_be_repeated(history: list[str], suite: Call) -> None:
    code, text = suite("regress", "--bisect", history[0], history[2], *RUN)
    assert code == 0 and "the alarm cannot be repeated" in text


def test_a_missing_commit_is_explained_with_the_command_that_mends_it(
    history: list[str], suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    git(here, "clone", "--quiet", "--depth", "1", here.as_uri(), str(tmp_path / "shallow"))
    git(here, "init", "--quiet", str(tmp_path / "empty"))
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for folder, word, reason in (
        ("shallow", "HEAD~1", "the checkout is shallow: run `git fetch --unshallow`"),
        ("empty", "HEAD", "the repository has no commit yet: run `git add --all`, then `git commit`"),
        ("plain", "nosuch", f"{tmp_path / 'plain'} is no git repository: run the command in a checkout"),
        ("plain", "HEAD~1", f"{tmp_path / 'plain'} is no git repository: run the command in a checkout"),
    ):
        monkeypatch.chdir(tmp_path / folder)
        code, text = suite("regress", word, *RUN)
        assert code == 2 and reason in text and text.count("\n") == 1, text
    monkeypatch.chdir(here)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # the user's may trust every directory
    code, text = suite("regress", "HEAD", *RUN)
    assert (
        code == 2 and "dubious ownership" in text and f"run `git config --global --add safe.directory {here}`" in text
    )


@pytest.mark.parametrize("words", [("HEAD~1",), (".", "nosuch"), ("--bisect", "HEAD~1", "HEAD")])
def test_commits_without_git_are_one_line_that_says_what_to_install(
    words: tuple[str, ...], history: list[str], suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    code, text = suite("regress", *words, *RUN)
    assert code == 2 and "git is not installed" in text and "apt install git" in text and text.count("\n") == 1, text


def test_a_side_that_names_no_commit_needs_no_git(
    history: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with build_side("factor=2", print) as side:
        assert (side.overrides, side.folder, side.commit) == (("factor=2",), Path.cwd(), None)


@pytest.mark.parametrize(
    "words, message",
    [
        (("nowhere",), "nowhere: no commit of .* requirement"),
        (("--bisect", ".", "HEAD"), "needs two commits"),
        (("--bisect", "HEAD", "HEAD~2"), "does not come after"),
        (("HEAD", "--margin", "0"), "are positive"),
        (("HEAD", "--minutes", "nan"), "are positive"),
        (("HEAD", "--json", "nowhere/a.json"), "nowhere/a.json: no such folder"),
        (("--bisect", "HEAD~1", "HEAD", "--json", "a.json"), "writes no report"),
        (("HEAD", "--rounds", "3"), "fewer rounds tell nothing about the spread; set 4 or more"),
        (("HEAD", "--only", "sgd"), "no such benchmark; choose one of sgd-torch"),
        (("HEAD", "--benchmarks", "none.yaml"), "none.yaml: No such file"),
        (("HEAD", "--run", "optimizer=sgd"), "names no task"),
    ],
)
def test_wrong_words_are_explained(words: tuple[str, ...], message: str, history: list[str], suite: Call) -> None:
    more = () if {"--only", "--benchmarks", "--run"} & set(words) else RUN
    code, text = suite("regress", *words, *more)
    assert code == 2 and re.search(message, text), text


@pytest.mark.parametrize(
    "text, message",
    [
        ("{}", "expected a list"),
        ("- {name: a}", "entry 1: expected name, run"),
        ("- {name: a, run: +task=b, speed: 3}", "entry 1: expected name, run"),
        ("- {name: a, run: +task=b, metric: speed}", "metric speed: choose one of step"),
        ("- {name: a, run: +task=b}\n- {name: a, run: +task=c}", "entry 2: the name is a, as that of entry 1"),
        ("- {name: [", "not YAML"),
    ],
)
def test_a_wrong_file_of_benchmarks_is_explained(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_benchmarks(path)


def test_benchmarks_of_the_suite_compose() -> None:
    from suite.settings import configure

    for benchmark in read_benchmarks():
        config = configure.resolve([*benchmark.overrides, "run_dir=any"])
        assert config.max_steps == 40 and benchmark.metric in METRICS


@pytest.mark.slow
def test_a_requirement_is_installed_above_the_other_packages(
    history: list[str], suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel made here replaces nothing in the environment below."""
    wheel = tmp_path / "wheels" / "slowdown-2.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("slowdown.py", "FACTOR = 1.2\n")
        archive.writestr("slowdown-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: slowdown\nVersion: 2.0\n")
        archive.writestr(
            "slowdown-2.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("slowdown-2.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    main = Path("suite/__main__.py")
    more = "try:\n    import slowdown\n    seconds *= slowdown.FACTOR\nexcept ImportError:\n    pass\nimport numpy\n"
    main.write_text(main.read_text().replace("folder = Path", f"{more}folder = Path"))
    assert suite("regress", ".", "slowdown==2.0", *RUN)[0] == 3
    code, text = suite("regress", ".", "slowdown==3.0", *RUN)
    assert code == 2 and "slowdown==3.0" in text


@pytest.mark.parametrize(
    ("load", "metric", "says"), [(9.4, "step", True), (9.4, "processor", False), (0.1, "step", False)]
)
def test_a_busy_machine_is_named_where_wall_times_are_compared(
    load: float, metric: str, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    warning = regress.warn_busy([Benchmark("a", (), metric)])
    assert bool(warning) == says
    assert not says or ("busy (load 9.4, 2 cores)" in warning and "--metric processor" in warning)


def test_the_metric_replaces_step_in_the_benchmarks_and_no_other_metric() -> None:
    chosen = regress.make_parser().parse_args(["HEAD", "--metric", "processor"])
    usual = regress.benchmarks_of(regress.make_parser().parse_args(["HEAD"]), None)
    switched = regress.benchmarks_of(chosen, None)
    pairs = {(one.metric, other.metric) for one, other in zip(usual, switched, strict=True)}
    assert ("step", "processor") in pairs and all(one in ("step", other) for one, other in pairs)
