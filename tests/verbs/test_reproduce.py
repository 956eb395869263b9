"""`suite reproduce` with claims of a user's own file: what is missing is measured once; interruptions lose little."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import boards
import pytest
from claimed import CLAIMS, RUN

from suite.claims import evidence, runs
from suite.verbs import reproduce


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(CLAIMS)
    return path


def answer(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)["claims"][0]


def test_a_claim_is_measured_once_and_its_pattern_is_never_an_exit_code(claims, capsys):
    assert reproduce.main([str(claims), "--list", "--json"]) == 0
    assert answer(capsys)["pattern"] == "not run"
    assert reproduce.main([str(claims), "--json"]) == 0
    one = answer(capsys)
    assert (one["verdict"], one["pattern"]) == (None, "pattern seen")
    assert one["checks"][0]["values"] == {"3": 4}  # tuned runs use no seed of the tuning
    (file,) = one["checks"][0]["files"]
    before = Path(file).stat().st_mtime_ns
    assert reproduce.main([str(claims), "--json"]) == 0
    assert answer(capsys) == one
    assert Path(file).stat().st_mtime_ns == before and len(list(Path("runs").glob("*/*/result.json"))) == 1

    claims.write_text(CLAIMS.replace("below: 4.5", "below: 3.9"))
    assert reproduce.main([str(claims), "--json"]) == 0
    assert answer(capsys)["pattern"] == "pattern not seen"


def test_keep_writes_what_an_earlier_command_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    committed = tmp_path / "suite"
    for module in (runs, evidence):
        monkeypatch.setattr(module, "find_committed", lambda: committed)
    for words, folder in (([], Path("runs")), (["--keep"], committed)):
        assert reproduce.main(["lessard2016-heavy-ball-cycle", *words]) == 0
        assert list(folder.glob("studies/lessard2016-heavy-ball-cycle/*.json"))


def test_nothing_starts_that_would_exceed_the_budget(claims, capsys):
    assert reproduce.main([str(claims), "--json", "--budget", "2s"]) == 0
    assert answer(capsys)["pattern"] == "not run" and not list(Path("runs").glob("*/*"))


@pytest.mark.parametrize("budget", ["soon", "-3m", "3 days"])
def test_a_malformed_budget_is_rejected(claims, budget):
    from suite.contract import UserError

    with pytest.raises(UserError, match="not a duration"):
        reproduce.main([str(claims), f"--budget={budget}"])


def test_a_run_that_is_rejected_says_why(claims):
    from suite.contract import UserError

    claims.write_text(CLAIMS.replace("task.batch_size=32", "optimizer.lr=-1"))
    with pytest.raises(UserError, match=r"was rejected: optimizer\.lr=-1"):
        reproduce.main([str(claims)])


@pytest.mark.slow
def test_an_interrupted_command_continues(claims):
    """A repeated command continues the run that SIGINT interrupted; its process group gets it, as Ctrl-C sends it."""
    claims.write_text(CLAIMS.replace("max_steps=4 eval_every=2", "max_steps=200 eval_every=50").replace("3.5", "199"))
    claims.write_text(claims.read_text().replace("below: 4.5", "below: 201"))
    command = [sys.executable, "-m", "suite", "reproduce", str(claims)]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (logs := list(Path("runs").glob("*/*/events.jsonl"))):
        time.sleep(0.2)
    while time.monotonic() < deadline and logs[0].read_text().count('"step"') < 5:
        time.sleep(0.2)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(timeout=60) == 130
    assert not list(Path("runs").glob("*/*/result.json"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pattern seen" in done.stdout
    (result,) = Path("runs").glob("*/*/result.json")
    assert len(json.loads(result.read_text())["segments"]) == 2


@pytest.mark.slow
def test_what_is_kept_has_the_name_that_submit_gives_it(claims, tmp_path, monkeypatch):
    from suite.claims import runs

    monkeypatch.setattr(runs, "find_committed", lambda: tmp_path / "results")
    assert reproduce.main([str(claims), "--json", "--keep"]) == 0
    (kept,) = (tmp_path / "results" / "runs").rglob("*.json")
    assert kept.parent.name == "resnet50" and kept.name.startswith("digits-sgd-torch-s3-")


def test_a_check_of_unknown_length_does_not_start_within_a_budget(claims, capsys):
    claims.write_text(CLAIMS.replace("    minutes: 0.2\n", ""))
    assert reproduce.main([str(claims), "--json", "--budget", "5h"]) == 0
    assert answer(capsys)["pattern"] == "not run"


def test_a_wrong_argument_of_a_study_is_one_message(claims):
    from suite.contract import UserError

    text = CLAIMS.replace(f"    runs: {{sgd: {RUN}}}\n    measure: {{field: steps}}\n", "    study: heavy-ball\n")
    claims.write_text(text.replace("    statistic: exact\n", "    statistic: exact\n    arguments: {momentun: 0.1}\n"))
    with pytest.raises(UserError, match="line 14: arguments: heavy-ball: no argument momentun; did you mean momentum"):
        reproduce.main([str(claims)])


@pytest.mark.slow
def test_a_rejected_run_of_one_claim_does_not_end_the_others(claims, capsys):
    first, _, second = CLAIMS.partition("- id: mine-steps")
    rejected = f"- id: mine-rejected{second}".replace("task.batch_size=32", "optimizer.lr=-1").replace("0.2", "0.1")
    claims.write_text(f"{first}{rejected.rstrip()}\n- id: mine-steps{second}")
    assert reproduce.main([str(claims), "--json"]) == 2
    text = capsys.readouterr()
    assert "was rejected: optimizer.lr=-1" in text.err
    patterns = {one["id"]: one["pattern"] for one in json.loads(text.out)["claims"]}
    assert patterns == {"mine-rejected": "not run", "mine-steps": "pattern seen"}


@pytest.mark.parametrize(
    "words, saved", [("+task=frnn optimizer=sgd", ["save=none"]), ("+task=frnn baseline=trees", [])]
)
def test_a_baseline_has_no_weights_to_leave_out(words: str, saved: list[str], claims, monkeypatch):
    from suite.claims import runs

    typed: list[list[str]] = []
    monkeypatch.setattr(runs, "_process", lambda command: typed.append(command) or 0)
    runs._run_suite(words, 3, [], keep=False)
    assert typed[0][-1 - len(saved) :] == ["track=none", *saved]


def test_a_run_that_another_command_ended_meanwhile_is_not_taken(tmp_path, monkeypatch):
    from suite.claims import runs

    def end_both(command: list[str]) -> int:
        for folder, words in ("a", command[2:]), ("b", [*command[2:], "max_steps=3"]), ("c", ["task=bert"]):
            (path := Path("runs/frnn") / folder / "result.json").parent.mkdir(parents=True)
            typed = shlex.join(["suite", *(word.removeprefix("+") for word in words)])
            path.write_text(json.dumps(boards.result(command=typed)))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "_process", end_both)
    kept: list[Path] = []
    monkeypatch.setattr(runs, "_keep_run", kept.append)
    made = runs._run_suite("+task=frnn optimizer=sgd", 3, ["task.data=simulated"], keep=True)
    assert made == [Path("runs/frnn/a")] and kept == [Path("runs/frnn/a/result.json")]


def test_a_check_says_which_runs_do_not_count_and_which_data_further_seeds_need(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # committed results only
    assert reproduce.main(["goldfarb2020-kfac-epoch10"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "runs that diverged do not count" in words
    assert "seeds more would decide (--seeds " in words and "), which need MNIST (data_dir=DIR)" in words
