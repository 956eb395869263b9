"""One run over two hosts: the bits of two local processes, whoever started it; and a host that is lost comes back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conftest
import pytest
from tiny_runs import curve, wait_for_checkpoint

from suite.training import checkpoint
from testbed import Testbed, missing, network, rendezvous

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow,
    pytest.mark.skipif(bool(REASON := missing()), reason=REASON),
]
RUN = ["--config-dir", str(conftest.OUTSIDE / "conf"), "+task=tiny", "track=none", "threads=1", "max_steps=300"]
RUN += ["eval_every=10", "checkpoint_every=10", "stop_at_target=false", "world=2", "optimizer=kfac", "comm=float21"]
SUITE = [sys.executable, "-m", "suite", *RUN]
JAX = ["backend=jax", "launch=jax", "launch.deadline=60"]
PORTS = iter(range(29_610, 29_700))
BOUND = 60  # seconds, the deadline of these runs: after so long nothing may be left of one that has lost a host


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    # torch 2.13's agents tell a host that comes back nothing through the store that they share with the ranks
    return kept | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun(bed: Testbed, host: int, port: int, restarts: int = 0) -> list[str]:
    """Return the command for one host. All hosts of a bed have one name, so each must say its address."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"),
        *(f"--rdzv-endpoint={bed.addresses[0]}:{port}", f"--local-addr={bed.addresses[host]}"),
        *(f"--max-restarts={restarts}", "-m", "suite", *RUN, "launch=torchrun", "launch.deadline=60"),
    ]


def local(folder: Path, *arguments: str) -> list[Any]:
    """Run two processes on this host and return the curve."""
    command = [*SUITE, "run_dir=local", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return curve(folder / "local")


def result(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(2, verify=False) as made:
        yield made


def test_torchrun_over_two_hosts_is_two_local_processes(bed: Testbed, tmp_path: Path) -> None:
    commands = [(host, [*torchrun(bed, host, 29_600), "run_dir=hosts"]) for host in range(2)]
    bed.run(commands, deadline=240, environment=environment(), folder=tmp_path)
    assert curve(tmp_path / "hosts") == local(tmp_path)
    again = bed.run(commands, deadline=240, environment=environment(), folder=tmp_path)
    assert "this run has a result already" in again[0]


def test_jax_over_two_hosts_is_two_local_processes(bed: Testbed, tmp_path: Path) -> None:
    each = [rendezvous(rank, 2, 2, bed.addresses[0]) for rank in range(2)]
    commands = [(host, [*SUITE, *JAX, "run_dir=hosts"]) for host in range(2)]
    bed.run(commands, each=each, deadline=240, environment=environment(), folder=tmp_path)
    assert curve(tmp_path / "hosts") == local(tmp_path, "backend=jax", "launch.processes=2")


def test_torchrun_goes_on_when_a_lost_host_comes_back(bed: Testbed, tmp_path: Path) -> None:
    """Host 1 is killed with all that runs on it, and started again: host 0 was never told."""
    options: dict[str, Any] = {"env": environment(), "cwd": tmp_path, "stdout": -1, "stderr": subprocess.STDOUT}
    command = lambda host: [*torchrun(bed, host, 29_601, restarts=3), "run_dir=hosts"]  # noqa: E731
    first, lost = (bed.start(host, command(host), text=True, **options) for host in range(2))
    wait_for_checkpoint(first, tmp_path / "hosts", 30)
    bed.kill(1)
    lost.communicate()
    back = bed.start(1, command(1), text=True, **options)
    output, _ = first.communicate(timeout=240)
    assert first.returncode == 0, output
    back.communicate(timeout=60)
    segments = result(tmp_path / "hosts")["segments"]
    assert [segment["resumed"] for segment in segments] == [False, True] and segments[1]["step"] > 0
    assert curve(tmp_path / "hosts") == local(tmp_path)


def test_jax_fails_when_a_host_is_lost_and_goes_on_when_started_again(bed: Testbed, tmp_path: Path) -> None:
    each = [rendezvous(rank, 2, 2, bed.addresses[0], 29_602) for rank in range(2)]
    options: dict[str, Any] = {"cwd": tmp_path, "stdout": -1, "stderr": subprocess.STDOUT}
    command = [*SUITE, *JAX, "run_dir=hosts"]
    first, lost = (bed.start(h, command, text=True, env=environment() | each[h], **options) for h in range(2))
    wait_for_checkpoint(first, tmp_path / "hosts", 30)
    bed.kill(1)
    lost.communicate()
    output, _ = first.communicate(timeout=120)
    assert first.returncode != 0 and not (tmp_path / "hosts" / "result.json").exists(), output
    step = checkpoint.find_latest(tmp_path / "hosts")
    assert step
    commands = [(host, command) for host in range(2)]
    printed = bed.run(commands, each=each, deadline=240, environment=environment(), folder=tmp_path)
    assert f"continuing from step {step}" in printed[0]
    assert curve(tmp_path / "hosts") == local(tmp_path, "backend=jax", "launch.processes=2")


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("kind", ["torchrun", "jax"])
def test_the_other_host_says_whom_it_lost_and_leaves_nothing(
    bed: Testbed, tmp_path: Path, kind: str, lost: int
) -> None:
    """Both hosts of a run are killed in turn, the one where ranks meet among them.

    A process of jax's that loses this one is ended by a thread of jax's, unless a collective fails before that.
    """
    left, port = 1 - lost, next(PORTS)
    each = [rendezvous(rank, 2, 2, bed.addresses[0], port) for rank in range(2)] if kind == "jax" else [{}, {}]
    options: dict[str, Any] = {"cwd": tmp_path, "stdout": -1, "stderr": subprocess.STDOUT, "text": True}
    hosts = []
    for host in range(2):
        command = [*SUITE, *JAX] if kind == "jax" else torchrun(bed, host, port)
        hosts.append(bed.start(host, [*command, "run_dir=hosts"], env=environment() | each[host], **options))
    wait_for_checkpoint(hosts[0], tmp_path / "hosts", 30)
    bed.kill(lost)
    output, _ = hosts[left].communicate(timeout=BOUND)
    assert hosts[left].returncode not in (0, 2), output
    assert not (tmp_path / "hosts" / "result.json").exists()
    step = checkpoint.find_latest(tmp_path / "hosts")
    why = [f"lost rank {lost} at {bed.addresses[lost]}"]
    if (kind, lost) == ("jax", 0):
        why.append("was terminated, possibly because another rank failed")
    goes_on = f"{tmp_path / 'hosts'}: the same command continues from step {step}"
    assert step and any(f"suite: rank {left}: {words}; {goes_on}\n" in output for words in why), output
    assert not any(network.command("ip", "netns", "pids", name) for name in bed.network.names)


def test_a_cable_that_is_out_is_noticed_by_the_deadline(bed: Testbed, tmp_path: Path) -> None:
    """Nothing closes a connection then: the collective's own deadline, or jax's heartbeats, must end the run."""
    for backend, number in (("torch", 0), ("jax", 1)):
        folder = tmp_path / backend
        folder.mkdir()
        each = [rendezvous(rank, 2, 2, bed.addresses[0], 29_603 + number) for rank in range(2)]
        command = [*SUITE, "launch=jax", f"backend={backend}", "launch.deadline=10", "run_dir=hosts"]
        options: dict[str, Any] = {"cwd": folder, "stdout": -1, "stderr": subprocess.STDOUT, "text": True}
        ranks = [bed.start(host, command, env=environment() | each[host], **options) for host in range(2)]
        wait_for_checkpoint(ranks[0], folder / "hosts", 30)
        bed.cut(1)
        for rank in ranks:
            output, _ = rank.communicate(timeout=120)
            step = checkpoint.find_latest(folder / "hosts")
            assert rank.returncode != 0 and step, output
            assert f"{folder / 'hosts'}: the same command continues from step {step}\n" in output
        assert not (folder / "hosts" / "result.json").exists()
        bed.cut(1, out=False)
