"""Addresses at which ranks listen: loopback if they are of one host, else the address that the others use."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import inherit

from suite.engine.ranks.listening import find_own_host, listen_at
from suite.engine.torch_device import device_for

LISTENING = "0A"  # in /proc/net/tcp
LOOPBACK = ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")


def own_address() -> str:
    """An address of this host that is not loopback; skips where there is none."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("no network")
        return probe.getsockname()[0]


@pytest.mark.quick
def test_the_address_that_others_use_is_the_one_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_own_host("127.0.0.1:1") == "127.0.0.1"
    assert find_own_host("localhost:1") in ("127.0.0.1", "::1")
    assert find_own_host("203.0.113.1:1") == "", "of a gateway"
    assert find_own_host("no-such-host.invalid:1") == ""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))])
    assert find_own_host("node1:1") == "", "loopback here, another address on the other hosts"


def test_a_listener_is_at_that_address_only() -> None:
    with listen_at("127.0.0.1:0") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    own = own_address()
    with listen_at(f"{own}:0") as listener:
        assert listener.getsockname()[0] == own
    with listen_at("203.0.113.1:0") as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")


def children_of(pid: int) -> list[int]:
    own = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [*own, *(grandchild for child in own for grandchild in children_of(child))]


def listening(pids: list[int]) -> set[str]:
    """Hosts, in the kernel's notation, at which processes listen."""
    inodes = set()
    for file in (file for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir()):
        try:
            inodes.add(str(file.readlink()).removeprefix("socket:[").rstrip("]"))
        except OSError:
            continue
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {line[1].partition(":")[0] for line in lines if line[3] == LISTENING and line[9] in inodes}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("words", [["backend=torch"], ["backend=jax", "launch.processes=2"]])
def test_local_ranks_listen_on_loopback_only(tmp_path: Path, words: list[str]) -> None:
    overrides = ["task=resnet50", "world=2", "track=none", "threads=1", "max_steps=100000", f"run_dir={tmp_path}/run"]
    command = [sys.executable, "-m", "suite", *overrides, *words]
    run = subprocess.Popen(command, env=inherit(PYTHONSAFEPATH="1"), stdout=subprocess.DEVNULL)
    log = tmp_path / "run" / "events.jsonl"
    try:
        while not log.exists() or b'"step_seconds"' not in log.read_bytes():
            assert run.poll() is None
            time.sleep(0.1)
        hosts = listening([run.pid, *children_of(run.pid)])
    finally:
        run.terminate()
        run.wait()
    assert hosts and hosts <= set(LOOPBACK), hosts


def test_a_rank_uses_the_gpu_with_its_number_on_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "6")
    assert device_for("auto") == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # CUDA_VISIBLE_DEVICES of each rank
    assert device_for("cuda") == torch.device("cuda", 0)
