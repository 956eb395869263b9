"""Runs whose processes somebody else starts: what was not said, or does not fit, is refused before anybody waits."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.contract import UserError
from suite.launch import external
from suite.launch.job import count_processes, count_threads, make_task
from suite.messages import decode_message, encode_message
from suite.record.result import Header
from suite.settings import configure

HERE = ["launch.rank=0", "launch.processes=2", "launch.address=127.0.0.1:1"]
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")


@pytest.fixture(autouse=True)
def started_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "typed, words",
    [
        (["launch=torchrun"], "launch.rank: missing; start each host with: torchrun"),
        (["launch=jax"], "launch.rank: missing; set launch.rank=0"),
        (["launch=jax", "launch.rank=0", "launch.processes=2"], "launch.address: missing"),
        (["launch=jax", *HERE, "launch.rank=2"], "with launch.processes=2, set a rank from 0 to 1"),
        (["launch=jax", *HERE, "launch.processes=3"], "set world=3"),
        (["launch=jax", *HERE, "backend=jax", "launch.processes=4"], "set world=4"),
        (["launch=torchrun", "backend=jax"], "launch=torchrun: does not support backend=jax; use launch=jax"),
    ],
)
def test_what_does_not_fit_is_refused(typed: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        external.check_launch(configure.resolve(["task=resnet50", "world=2", *typed]))


def test_sweeps_start_processes_by_themselves() -> None:
    config = configure.resolve(["task=resnet50", "world=2", "launch=jax", *HERE])
    with pytest.raises(UserError, match="accepts one run only"):
        external.check_launch(config, apart=True)


def test_threads_are_typed_or_the_environments_or_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    config = configure.resolve(["task=resnet50", "world=2"])
    for variable, count in (("3", 3), ("", 4), ("0", 4), ("4,2", 4), ("6,2", 6)):
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        assert count_threads(config, count_processes(config)) == count
    assert count_threads(configure.resolve(["task=resnet50", "threads=5"]), 1) == 5


def test_torchrun_and_jax_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("1", "4", "2", "1", "2", "first:29400"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "first")
    monkeypatch.setenv("MASTER_PORT", "29500")
    config = configure.resolve(["task=resnet50", "world=4", "launch=torchrun"])
    assert external.check_launch(config) == (1, 4) and config.launch.address == "first:29500"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert count_threads(config, count_processes(config)) == 4  # two processes of the four are on this host
    config = configure.resolve(["task=resnet50", "world=4", "launch=jax", "backend=jax"])
    assert external.check_launch(config) == (1, 2) and config.launch.address == "first:29400"


@pytest.mark.parametrize("name", ["0", "007", "1e3", "true", "runs/7"])
def test_a_directory_may_have_a_numbers_name(name: str) -> None:
    assert configure.resolve(["task=resnet50", f"run_dir={name}"]).run_dir == name
    assert configure.resolve(["task=resnet50", "task.data=folder", f"data_dir={name}"]).data_dir == name


def test_the_command_line_hands_over(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suite", "+task=resnet50", "launch=torchrun"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "start each host with: torchrun" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend, kind", [("torch", "torchrun"), ("jax", "jax")])
def test_a_rank_that_cannot_begin_ends_all_at_once(tmp_path: Path, backend: str, kind: str) -> None:
    """Neither waits for the other: one in its clean-up, the other for what it should be told."""
    (tmp_path / "run" / "header.json").mkdir(parents=True)
    typed = ["+task=resnet50", "world=2", f"backend={backend}", f"launch={kind}", "run_dir=run", "threads=1"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address, ranks = f"127.0.0.1:{free.getsockname()[1]}", []
    for rank in range(2):
        own = [f"launch.rank={rank}", "launch.processes=2", f"launch.address={address}"]
        command = [sys.executable, "-m", "suite", *typed, *own]
        ranks.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True))
    began = time.monotonic()
    said = [process.communicate(timeout=100)[1] for process in ranks]
    assert ranks[0].returncode == 2 and "header.json: not a regular file" in said[0]
    assert ranks[1].returncode != 0 and time.monotonic() - began < 60


def test_rank_0_sends_its_decision_with_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = configure.resolve_training(["task=resnet50"])
    decision = external._decide(run, make_task(run), 1, [], lambda directory: None)
    received = decode_message(encode_message(decision))
    assert received == decision and Header.read(received.header).hash == decision.hash
