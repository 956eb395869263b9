"""Ranks end with their launcher, who writes holds the lock, and a log that two processes wrote gives no result."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_run import environment, events, finish, start
from tiny_runs import TINY, curve, wait_for_step

from suite.record import record

Call = Callable[..., tuple[int, str]]
RUN = ("max_steps=200", "eval_every=50", "stop_at_target=false", "world=2", "run_dir=cut", "checkpoint_every=10")
RANKS = {"torch": [], "jax": ["backend=jax", "launch.processes=2"]}


def until(done: Callable[[], bool], what: str) -> None:
    """Wait for something that happens soon."""
    over = time.monotonic() + 30
    while not done():
        assert time.monotonic() < over, what
        time.sleep(0.02)


def alive(process: int) -> bool:
    """Return whether a process runs; one that nobody has waited for does not."""
    path = Path(f"/proc/{process}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_ranks_end_with_a_killed_launcher(tmp_path: Path, ranks: list[str]) -> None:
    """And the same command goes on by itself, to the same bits."""
    process = start(tmp_path, *RUN, *ranks)
    wait_for_step(process, tmp_path / "cut", 30)
    started = children(process.pid)
    assert len(started) == 2 and all(map(alive, started))
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, started)), "ranks train on without their launcher")
    process.communicate(timeout=30)
    assert not (tmp_path / "cut" / "result.json").exists(), "the ranks made the run to its end"
    finish(tmp_path, *RUN, *ranks)
    steps = [event["step"] for event in events(tmp_path / "cut") if event["event"] == "step"]
    assert steps == list(range(1, 201))
    finish(tmp_path, *RUN, *ranks, "run_dir=whole")
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")


@pytest.mark.slow
def test_rank_0_holds_the_lock_and_no_other(tmp_path: Path) -> None:
    """While any process of a run may write, the same command is rejected, even if the launcher is gone."""
    long = (*RUN, "max_steps=20000")  # longer than the second command takes to look at the lock
    process = start(tmp_path, *long)
    wait_for_step(process, tmp_path / "cut", 5)
    lock = tmp_path / "cut" / "lock"
    held = [
        any(path.exists() and path.resolve() == lock for path in Path(f"/proc/{child}/fd").iterdir())
        for child in children(process.pid)
    ]
    second = start(tmp_path, *long)
    said, _ = second.communicate(timeout=60)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert held == [True, False]
    assert second.returncode == 2 and "another process is running this" in said, said


CHILD = "import sys, time; from suite import orphan; orphan.{call}; print('begun', flush=True); time.sleep(600)"


def test_a_pipe_alone_ends_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process ends when the launcher's end closes while the launcher lives, as on systems without Linux's signal."""
    command = [sys.executable, "-c", CHILD.format(call="end_with_pipe(0)")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout and child.stdin and child.stdout.readline() == b"begun\n"
    child.stdin.close()
    assert child.wait(30) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends a process with its parent on Linux only")
def test_a_process_whose_parent_has_ended_before_its_first_step_ends(tmp_path: Path) -> None:
    """The parent is killed between the start of a process and its request to end with the parent."""
    lives = tmp_path / "lives"
    start = (
        "import os, subprocess, sys, time; from functools import partial; from suite import orphan\n"
        "def bind(parent):\n"
        "    os.kill(parent, 9)\n"
        "    while os.getppid() == parent: time.sleep(0.01)\n"
        "    orphan.bind_to_parent(parent)\n"
        f"    open({str(lives)!r}, 'w')\n"
        "subprocess.Popen(['true'], preexec_fn=partial(bind, os.getpid()))\n"
    )
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as parent:
        parent.communicate(timeout=30)  # the pipe closes when the process has ended, too
    assert parent.returncode == -signal.SIGKILL and not lives.exists()


def test_a_rank_of_torchrun_ends_with_the_agent() -> None:
    """It has no pipe; the agent here is a shell that is killed."""
    command = [sys.executable, "-c", CHILD.format(call="end_with_parent()")]
    script = f"import subprocess; subprocess.Popen({command!r}).wait()"
    agent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert agent.stdout and agent.stdout.readline() == b"begun\n"
    [child] = children(agent.pid)
    agent.kill()
    agent.wait()
    until(lambda: not alive(child), "the rank outlives its agent")


SLEEP = ["timeit", "-n", "1", "import time; time.sleep(600)"]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(f"from suite.claims import runs; runs._process(['-m', *{SLEEP}])", id="suite reproduce"),
        pytest.param(f"from suite.counters import golden; golden._process({{}}, {SLEEP})", id="suite counters"),
        pytest.param(
            "from suite.launch import replay; from suite.settings import configure; "
            "replay.first_steps(configure.resolve(['task=resnet50']), 10**9)",
            id="suite verify",
        ),
        pytest.param(
            "import tempfile; from suite.studies import grid; "
            "grid._suite('task=resnet50', 'max_steps=100000', 'track=none', f'run_dir={tempfile.mkdtemp()}/run')",
            id="make grid",
        ),
    ],
)
def test_what_a_verb_runs_ends_with_the_killed_verb(call: str, tmp_path: Path) -> None:
    verb = subprocess.Popen([sys.executable, "-c", call], cwd=tmp_path, env=environment() | {"TMPDIR": str(tmp_path)})
    until(lambda: bool(children(verb.pid)), "no process was started")
    [child] = children(verb.pid)
    verb.kill()
    verb.wait()
    until(lambda: not alive(child), "the process outlives its verb")


@pytest.mark.parametrize(
    "steps, evaluations, words",
    [
        ([1, 2, 2, 3], [], "step 2 follows step 2"),
        ([1, 3, 2], [], "step 3 follows step 1"),
        ([1, 2, 1, 2], [], "step 1 follows step 2"),
        ([1, 2], [50, 100, 100], "evaluation at step 100 follows evaluation at step 100"),
        ([1, 2], [100, 50], "evaluation at step 50 follows"),
    ],
)
def test_a_log_out_of_order_is_not_folded(steps: list[int], evaluations: list[int], words: str) -> None:
    told = [{"event": "step", "step": step} for step in steps]
    told += [{"event": "evaluated", "step": step} for step in evaluations]
    with pytest.raises(record.LogError, match=words):
        record.fold_events(told, [])


def test_a_log_out_of_order_gives_no_result_and_verify_reports_it(suite: Call, tmp_path: Path) -> None:
    """A second writer's lines, appended while the run goes on, as a run without lock would."""
    assert suite(*TINY, "max_steps=60", "eval_every=20", "stop_at_target=false", "run_dir=cut")[0] == 0
    shutil.copytree(tmp_path / "cut", tmp_path / "mixed")
    log = tmp_path / "mixed" / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:30], *lines[20:]]))
    code, said = suite("verify", "mixed/result.json", "--steps", "0")
    assert code == 1 and "events.jsonl: step" in said and "several processes" in said


def test_a_second_writer_ends_a_run_without_result(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    real = record.read_events

    def doubled(path: Path) -> list[dict[str, Any]]:
        found = real(path)
        return [*found[:3], *found[1:]]

    monkeypatch.setattr(record, "read_events", doubled)
    code, text = suite(*TINY, "max_steps=8", "eval_every=4", "run_dir=mixed")
    assert code == 2 and "several processes wrote this log" in text and "delete mixed" in text, text
    assert not Path("mixed/result.json").exists() and json.loads(Path("mixed/header.json").read_text())
