"""A run as a Slurm job: what the job asks for, who its tasks are, and that it goes on where it was stopped.

No Slurm is needed: `sbatch` is a script that keeps what it is given, and jobs are run by submitit's executor for one
machine, which hands out ranks and passes on signals as Slurm does.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import psutil
import pytest
from engines import change
from tiny_runs import curve

from suite.contract import UserError
from suite.launch import ending, external
from suite.launch import slurm as launch_slurm
from suite.launch.job import count_processes, count_threads
from suite.settings import configure
from suite.settings.launch import ExternalLaunch
from suite.settings.run import Run

FOUND = importlib.util.find_spec("submitit") is not None
needs_submitit = pytest.mark.skipif(not FOUND, reason="submitit is not installed: pip install -e '.[slurm]'")
RUN = ["--config-dir", str(conftest.OUTSIDE / "conf"), "+task=tiny", "track=none", "threads=1", "max_steps=60"]
RUN += ["eval_every=10", "stop_at_target=false", "world=2", "optimizer=kfac"]
LOCAL = ["launch=slurm", "launch.cluster=local"]


def config(*typed: str) -> Run:
    return configure.resolve_training(["task=resnet50", "launch=slurm", *typed])


def test_options_are_what_slurm_is_asked_for() -> None:
    typed = ["world=8", "launch.nodes=2", "launch.partition=gpu", "launch.account=me", "launch.gres=gpu:4"]
    asked = launch_slurm.request_resources(config(*typed, "launch.minutes=30", "+launch.extra.mem=64G"))
    assert {name: asked[name] for name in ("nodes", "tasks_per_node", "timeout_min")} == {
        "nodes": 2,
        "tasks_per_node": 4,
        "timeout_min": 30,
    }
    assert (asked["slurm_partition"], asked["slurm_account"], asked["slurm_gres"]) == ("gpu", "me", "gpu:4")
    assert asked["slurm_additional_parameters"] == {"mem": "64G"} and "cpus_per_task" not in asked
    of_jax = config("world=16", "backend=jax", "launch.nodes=2", "launch.cpus=3")
    asked = launch_slurm.request_resources(of_jax)
    assert (asked["nodes"], asked["tasks_per_node"], asked["cpus_per_task"]) == (2, 1, 3)
    assert count_threads(of_jax, count_processes(of_jax)) == 3


@pytest.mark.parametrize(
    "typed, words",
    [
        (["world=3", "launch.nodes=2"], "world=3: cannot be divided among 2 nodes; set launch.nodes=1"),
        (["world=4", "launch.nodes=2", "launch.per_host=4"], "among 2 nodes of 4 tasks; set world=8"),
        (["world=3", "launch.nodes=2", "backend=jax"], "world=3: cannot be divided among 2 nodes"),
    ],
)
def test_ranks_that_cannot_be_shared_out_are_refused(typed: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        launch_slurm.request_resources(config(*typed))


def test_without_submitit_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)  # cannot be imported
    with pytest.raises(UserError, match=re.escape("pip install -e '.[slurm]'")):
        launch_slurm.launch(config(), [])


def test_a_task_of_the_job_is_a_rank() -> None:
    """Rank 0 is where the job's first host is, at a port that all tasks of one job agree on and two jobs do not."""
    job = {"job_id": "4711", "num_tasks": 8, "num_nodes": 2, "hostnames": ["gpu03", "gpu04"]}
    run = config("world=8", "launch.nodes=2")

    def joins(rank: int, **changes: Any) -> ExternalLaunch:
        task = SimpleNamespace(**job | changes, global_rank=rank)
        return launch_slurm.describe_rank(task, launch_slurm.settings_of(run))

    found = [joins(rank) for rank in range(8)]
    assert [one.rank for one in found] == list(range(8)) and len({one.address for one in found}) == 1
    assert re.fullmatch(r"gpu03:2\d{4}", str(found[0].address))
    for rank, launch in enumerate(found):
        assert external.check_launch(change(run, {"launch": launch})) == (rank, 8)
        assert launch.per_host == 4
    assert joins(0, job_id="4712").address != found[0].address


@needs_submitit
def test_slurms_own_variables_say_who_a_task_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    slurm = {"JOB_ID": 99, "NTASKS": 4, "JOB_NUM_NODES": 2, "PROCID": 3, "JOB_NODELIST": "gpu[03-04],x7"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    launch = launch_slurm.describe_rank(submitit.JobEnvironment(), launch_slurm.settings_of(config("world=4")))
    assert (launch.rank, launch.processes, launch.per_host) == (3, 4, 2)
    assert str(launch.address).startswith("gpu03:")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `sbatch` puts a job's script into `kept`, or refuses where there is a file `full`."""
    tools = tmp_path / "tools"
    tools.mkdir()
    refuse = f"if [ -e {tmp_path}/full ]; then echo 'sbatch: error: invalid partition' >&2; exit 1; fi"
    scripts = {"srun": "", "sbatch": f'{refuse}\ncp "$1" {tmp_path}/kept\necho Submitted batch job 4711'}
    for name, body in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@needs_submitit
def test_what_is_written_into_the_script(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["world=8", "launch.nodes=2", "launch.partition=gpu", "launch.account=me", "launch.gres=gpu:4"]
    typed += ["launch.minutes=30", "launch.cpus=3", "launch.setup=[module load cuda]", "+launch.extra.mem=64G"]
    made = config(*typed, "run_dir=out", "task.bn_group=8")
    assert launch_slurm.launch(made, typed) == 0
    lines = (cluster / "kept").read_text().splitlines()
    for flag in (
        "nodes=2",
        "ntasks-per-node=4",
        "cpus-per-task=3",
        "time=30",
        "partition=gpu",
        "account=me",
        "mem=64G",
    ):
        assert f"#SBATCH --{flag}" in lines
    assert "#SBATCH --gres=gpu:4" in lines and "#SBATCH --signal=USR2@90" in lines
    [start] = [line for line in lines if line.startswith("srun")]
    assert "--kill-on-bad-exit=1" in start and lines.index("module load cuda") < lines.index(start)
    folder = cluster / "out" / "slurm"
    assert f"{folder}/%j_%t_log.out" in start and sys.executable in start
    printed = capsys.readouterr().out
    assert "job     4711: 2 × 4 tasks" in printed and "out/slurm/4711_0_log.out" in printed
    assert "result  out/result.json" in printed
    (cluster / "full").touch()
    with pytest.raises(UserError, match="invalid partition"):
        launch_slurm.launch(made, typed)
    with pytest.raises(UserError, match=r"set launch\.wait=true"):
        launch_slurm.launch(change(made, {"repeat": 2}), typed)


# ------------------------------------------------------------------------------------- jobs on this machine
def suite(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
    environment = conftest.inherit(PYTHONPATH=path)
    command = [sys.executable, "-m", "suite", *RUN, *arguments]
    # to files: a job that goes on when the command has ended would keep a pipe open
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=out, stderr=err, timeout=240)
    said = [(folder / name).read_text() for name in ("out", "err")]
    return subprocess.CompletedProcess(command, done.returncode, *said)


@needs_submitit
@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, job, local",
    [
        ("torch", [], []),
        ("jax", [], []),  # one task with both devices
        ("jax", ["launch.per_host=2"], ["launch.processes=2"]),
    ],
)
def test_a_job_is_the_run_of_local_processes(tmp_path: Path, backend: str, job: list[str], local: list[str]) -> None:
    """Bit for bit; its exit code is the run's."""
    both = [f"backend={backend}", "max_steps=20"]
    ended = suite(tmp_path, *both, *LOCAL, *job, "launch.wait=true", "run_dir=job", "require=target")
    assert ended.returncode == ending.MISSED, ended.stderr + ended.stdout
    assert suite(tmp_path, *both, *local, "run_dir=local").returncode == 0
    assert curve(tmp_path / "job") == curve(tmp_path / "local")


@needs_submitit
@pytest.mark.slow
def test_a_job_whose_rank_fails_fails(tmp_path: Path) -> None:
    """A failed job says where its log lies; here the run's directory holds another configuration."""
    assert suite(tmp_path, "run_dir=job", "max_steps=5", "world=1").returncode == 0
    ended = suite(tmp_path, *LOCAL, "launch.wait=true", "run_dir=job", "max_steps=20")
    assert ended.returncode == 1 and "failed or was cancelled; see" in ended.stderr and "_*_log.err" in ended.stderr
    said = "".join(path.read_text() for path in (tmp_path / "job" / "slurm").glob("*_0_log.err"))
    assert "contains a run of another configuration" in said and "rank 0 ended with exit code 2" in said


@needs_submitit
@pytest.mark.slow
def test_a_job_that_is_stopped_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    """SIGUSR2, as Slurm sends it before a job's time is over: a checkpoint, then the same job once more."""
    many = ["max_steps=300"]
    started = suite(tmp_path, *many, *LOCAL, "run_dir=job")
    assert started.returncode == 0, started.stderr
    controller = int(started.stdout.split()[1].rstrip(":"))
    events, until = tmp_path / "job" / "events.jsonl", time.monotonic() + 120
    while time.monotonic() < until and not (events.exists() and events.read_text().count('"evaluated"') > 1):
        time.sleep(0.01)
    for task in psutil.Process(controller).children():
        task.send_signal(signal.SIGUSR2)
    while time.monotonic() < until + 120 and not (tmp_path / "job" / "result.json").exists():
        time.sleep(0.1)
    segments = json.loads((tmp_path / "job" / "result.json").read_text())["segments"]
    assert [segment["resumed"] for segment in segments] == [False, True] and segments[1]["step"] > 0
    assert suite(tmp_path, *many, "run_dir=local").returncode == 0
    assert curve(tmp_path / "job") == curve(tmp_path / "local")
