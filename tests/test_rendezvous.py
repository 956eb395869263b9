"""A start that fails is one line of each rank: who is missing, or what is wrong with the address, and what to type."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suite.contract import UserError
from suite.launch import rendezvous


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def together(*calls: tuple[int, int, str], deadline: float = 20) -> list[str]:
    """Return what each process is told: nothing where all have come."""

    def one(call: tuple[int, int, str]) -> str:
        try:
            rendezvous.meet_ranks(*call, deadline)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_ranks_meet_in_any_order_and_leave_the_port_free(address: str) -> None:
    for _ in range(3):
        assert together((2, 3, address), (0, 3, address), (1, 3, address)) == ["", "", ""]
    rendezvous.meet_ranks(0, 1, address, 1)


def test_all_are_told_who_is_missing(address: str) -> None:
    said = together((0, 4, address), (2, 4, address), deadline=1)
    assert said[0] == said[1]
    assert said[0].startswith(f"ranks 1, 3 of 4 did not join at launch.address={address} within launch.deadline=1 sec")


def test_two_processes_with_one_number(address: str) -> None:
    said = together((0, 3, address), (1, 3, address), (1, 3, address))
    assert all("launch.rank=1: two processes have this rank; give each process its own, 0 to 2" in one for one in said)


def test_processes_that_were_told_different_numbers(address: str) -> None:
    said = together((0, 2, address), (1, 3, address))
    assert all("launch.processes=2 on rank 0, but 3 on rank 1; set the same for every rank" in one for one in said)


def test_a_rank_that_was_started_again_is_not_two(address: str) -> None:
    """A rank that is started again counts once; its first process has ended while it waited."""
    host, port = rendezvous.parse_address(address)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(together, (0, 3, address))
        with rendezvous._connection(address, host, port, 10) as ended:
            ended.sendall(b'{"rank": 1, "ranks": 3}')
        # rank 2 joins after that process has ended; before, all three would be there and the run would start
        assert together((1, 3, address), (2, 3, address)) == ["", ""] and first.result() == [""]


def test_a_rank_that_left_before_the_last_one_came_is_waited_for(address: str) -> None:
    host, port = rendezvous.parse_address(address)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(together, (0, 3, address))
        with rendezvous._connection(address, host, port, 10) as ended:
            ended.sendall(b'{"rank": 1, "ranks": 3}')
        with rendezvous._connection(address, host, port, 10) as last:
            last.sendall(b'{"rank": 2, "ranks": 3}')
            assert together((1, 3, address)) == [""] and first.result() == [""]


def test_what_else_connects_is_ignored(address: str) -> None:
    host, port = rendezvous.parse_address(address)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(together, (0, 2, address))
        with rendezvous._connection(address, host, port, 10) as scanner:
            scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert together((1, 2, address)) == [""] and first.result() == [""]


def test_nobody_answers(address: str) -> None:
    [said] = together((1, 2, address), deadline=1)
    assert said.startswith(
        f"no process answered at launch.address={address} within launch.deadline=1 seconds (Connection ref"
    )


def test_somebody_else_answers(address: str) -> None:
    host, port = rendezvous.parse_address(address)
    with socket.create_server((host, port)) as other, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(together, (1, 2, address))
        visitor, _ = other.accept()
        visitor.sendall(b"SSH-2.0-OpenSSH\r\n")
        assert "the process that answers there is not rank 0 of this run" in asked.result()[0]
        visitor.close()


def test_a_host_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "UNKNOWN", 0.5)
    [said] = together((1, 2, "nowhere.invalid:29400"))
    assert said.startswith(
        "launch.address=nowhere.invalid:29400: the host nowhere.invalid is unknown on this machine; set rank"
    )


@pytest.mark.parametrize("wrong", ["node0", "node0:", ":29400", "node0:http", "node0:0", "node0:70000"])
def test_an_address_that_is_none(wrong: str) -> None:
    with pytest.raises(UserError, match="must be HOST:PORT, with a port from 1 to 65535"):
        rendezvous.meet_ranks(0, 2, wrong, 1)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_each_failure_is_one_line_of_the_command(tmp_path: Path, backend: str, address: str) -> None:
    """A rank that never comes, for rank 0 and for another; a port in use; and nothing is left behind."""

    def said(rank: int, address: str) -> str:
        typed = ["+task=resnet50", "world=2", f"backend={backend}", "launch=jax", "run_dir=run", "launch.deadline=1"]
        own = [f"launch.rank={rank}", "launch.processes=2", f"launch.address={address}"]
        command = [sys.executable, "-m", "suite", *typed, *own]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 2 and done.stdout == "" and not list(tmp_path.iterdir()), done.stdout + done.stderr
        return done.stderr

    missing = f"rank 1 of 2 did not join at launch.address={address} within launch.deadline=1 seconds; "
    assert said(0, address).startswith(f"suite: rank 0: {missing}")
    assert said(0, address).count("\n") == 1
    alone = said(1, address)
    assert (
        alone.startswith(f"suite: rank 1: no process answered at launch.address={address}") and alone.count("\n") == 1
    )
    with socket.create_server(("", 0)) as taken:
        used = said(0, f"127.0.0.1:{taken.getsockname()[1]}")
    assert "is in use on this host; end the process that uses it, or set another port" in used and used.count("\n") == 1
