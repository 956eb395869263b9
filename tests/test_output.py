"""Output that nobody can receive is dropped, and the run goes on; the signal of a closed terminal saves the run."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import conftest
import pytest
from tiny_runs import TINY, wait_for_step

from suite import output

COMMAND = [sys.executable, "-m", "suite"]
SHORT = ("max_steps=40", "eval_every=1", "stop_at_target=false")
LONG = ("max_steps=400", "eval_every=100", "stop_at_target=false", "optimizer=kfac")


def environment(**variables: str) -> dict[str, str]:
    return conftest.inherit(PYTHONPATH=str(conftest.OUTSIDE), PYTHONSAFEPATH="1", **variables)


def close_early(folder: Path, *arguments: str, lines: int = 1) -> int:
    """Run a command whose output and errors nobody reads after some lines; return the exit code."""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        return process.wait(300)


def outcome(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())["outcome"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.quick),
        ("world=2",),
        pytest.param(("backend=jax",), marks=pytest.mark.slow),
    ],
    ids=["alone", "ranks", "jax"],
)
def test_a_closed_pipe_does_not_end_a_run(tmp_path: Path, more: tuple[str, ...]) -> None:
    assert close_early(tmp_path, *TINY, *SHORT, "run_dir=run", *more, lines=3) == 0
    assert outcome(tmp_path / "run")["kind"] == "exhausted"


def test_a_closed_pipe_does_not_end_a_sweep_nor_a_search(tmp_path: Path) -> None:
    assert close_early(tmp_path, "-m", *TINY, *SHORT, "seed=0,1", lines=3) == 0
    results = sorted(tmp_path.glob("runs/tiny/*/result.json"))
    assert [outcome(path.parent)["kind"] for path in results] == ["exhausted", "exhausted"]
    tune = ("tune", *TINY, "optimizer=sgd", "max_steps=8", "eval_every=2", "trials=2", "seeds=1", "runs=3", "--misses")
    assert close_early(tmp_path, *tune, "--out", "recipe.yaml", lines=2) in (0, 1)
    assert (tmp_path / "recipe.yaml").exists(), "the search went on to its end"


@pytest.mark.parametrize("how", [">&-", ">&- 2>&- <&-", ">/dev/full 2>/dev/full"])
def test_an_output_that_is_closed_or_full_does_not_end_a_run(tmp_path: Path, how: str) -> None:
    words = " ".join(f"'{word}'" for word in (*COMMAND, *TINY, *SHORT, "run_dir=run"))
    done = subprocess.run(["sh", "-c", f"{words} {how}"], cwd=tmp_path, env=environment())
    assert done.returncode == 0 and outcome(tmp_path / "run")["kind"] == "exhausted"


def test_a_listing_whose_output_is_lost_says_so_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "list"], stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 2 and done.stderr == "suite: output was lost: the disk is full; make room\n"
    assert close_early(tmp_path, "list", "--settings") == 0


def test_an_encoding_without_the_dots_does_not_end_a_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *TINY, *SHORT, "run_dir=run"],
        cwd=tmp_path,
        env=environment(PYTHONIOENCODING="ascii"),
        stdout=subprocess.PIPE,
    )
    assert done.returncode == 0 and outcome(tmp_path / "run")["kind"] == "exhausted"
    assert done.stdout.decode("ascii").startswith("tiny ? ")


def test_a_pipe_that_does_not_wait_loses_nothing() -> None:
    """Some programs leave their pipe in a mode in which a write fails while the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = b"line\n" * 100_000

    def write() -> None:
        with io.BufferedWriter(output.Descriptor(writer)) as stream:
            stream.write(text)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    received = b"".join(iter(lambda: os.read(reader, 2**16), b""))
    thread.join()
    os.close(reader)
    assert received == text


def test_a_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    """Shell and kernel both send SIGHUP, and what is printed then fails."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *TINY, *LONG, "run_dir=cut"], cwd=tmp_path, env=environment(), stdout=end, stderr=end, text=True
    )
    os.close(end)
    wait_for_step(process, tmp_path / "cut", 20)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129
    log = [json.loads(line) for line in (tmp_path / "cut" / "events.jsonl").read_text().splitlines()]
    assert (log[-1]["outcome"]["kind"], log[-1]["outcome"]["signal"]) == ("interrupted", "SIGHUP")
    assert log[-1]["step"] >= 20
    assert (tmp_path / "cut" / "checkpoint" / "index.json").exists()


def test_ranks_are_saved_when_a_terminal_closes_and_go_on_under_nohup(tmp_path: Path) -> None:
    words = [*COMMAND, *TINY, *LONG, "world=2", "run_dir=cut"]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, text=True)
    wait_for_step(process, tmp_path / "cut", 20)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129 and (tmp_path / "cut" / "checkpoint" / "index.json").exists()
    process = subprocess.Popen(
        ["nohup", *words],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for_step(process, tmp_path / "cut", 100)
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 0 and outcome(tmp_path / "cut")["kind"] == "exhausted"
