"""Ranks of a run as child processes that start, stop and end together.

Children are ended by SIGKILL, together with the processes that they started, because jax processes ignore SIGTERM.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from types import FrameType

from suite import signals
from suite.contract import UserError
from suite.launch.ending import MISSED
from suite.launch.job import Job

GRACE = 30.0  # seconds that the other ranks get to end after one has ended without failure
FAILED_GRACE = 3.0  # the same after a rank has failed
REJECTED = 2  # the exit code of bad usage
GOOD = (0, MISSED, *signals.CODES.values())  # exit codes of a rank that did not fail


def run_ranks(job: Job, lock: int, *, brief: bool) -> int:
    """Run every rank in a child process with its own session; if one fails, end the others. Return the exit code.

    Each child receives the configuration through a pipe. The pipe closes when this process ends, and the child ends
    with it. Rank 0, which writes, holds the directory's lock together with this process.

    Args:
        job: the job.
        lock: descriptor of the directory's lock.
        brief: what the console leaves out.

    Raises:
        UserError: with the errors that the ranks reported, each message once.
    """
    address = f"127.0.0.1:{_free_port()}"
    # gloo and NCCL would listen at the address of the host's name
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    variables = loopback | os.environ | {"OMP_NUM_THREADS": str(job.threads), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "suite.launch.worker", str(job.directory), str(job.processes), address]
    errors, reports = os.pipe()  # ranks write their errors into `reports`
    os.set_blocking(errors, False)  # a process that a rank has started may keep the other end open
    children: list[subprocess.Popen[bytes]] = []
    try:
        with signals.handle_signals(partial(_forward_signal, children), *signals.CODES):
            for rank in range(job.processes):
                child = subprocess.Popen(
                    [*command, str(rank), str(reports), *(["brief"] if brief else [])],
                    env=variables | {"LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                    pass_fds=[lock, reports] if rank == 0 else [reports],
                )
                children.append(child)
                assert child.stdin
                with contextlib.suppress(BrokenPipeError):  # the child has ended already; `_exit_code` reports it
                    child.stdin.write(json.dumps(job.run.plain()).encode() + b"\n")
                    child.stdin.flush()
            _await(children)
        error = _reported(errors)
        code = _exit_code(children, quiet=bool(error))
        if error:
            raise UserError(error)
        return code
    finally:
        for child in children:
            _kill(child)
        os.close(errors)
        os.close(reports)


def _reported(errors: int) -> str:
    """Collect the errors that ranks wrote into the pipe: each message once, with its ranks if messages differ."""
    try:
        lines = os.read(errors, 2**20).decode().splitlines()
    except BlockingIOError:
        return ""
    ranks_by_error: dict[str, list[int]] = {}
    for line in lines:
        report = json.loads(line)
        ranks_by_error.setdefault(report["error"], []).append(report["rank"])
    if len(ranks_by_error) == 1:
        return next(iter(ranks_by_error))
    messages = (f"rank {', '.join(map(str, sorted(ranks)))}: {error}" for error, ranks in ranks_by_error.items())
    return "\nsuite: ".join(messages)


def _await(children: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all ranks have ended, or the time of the remaining ones is over.

    When one rank has ended, the others get `GRACE` seconds, or `FAILED_GRACE` if it failed. When one is stopped, the
    others stop, too, until it continues; otherwise they would bill their waiting.
    """
    ended: float | None = None
    stopped: subprocess.Popen[bytes] | None = None
    while any(child.poll() is None for child in children):
        codes = [child.returncode for child in children if child.poll() is not None]
        ended = ended if ended is not None or not codes else time.monotonic()
        grace = FAILED_GRACE if any(code not in GOOD for code in codes) else GRACE
        if ended is not None and time.monotonic() - ended > grace:
            break
        stopped = _share_stop(children, stopped)
        time.sleep(0.02)


def _share_stop(
    children: list[subprocess.Popen[bytes]], stopped: subprocess.Popen[bytes] | None
) -> subprocess.Popen[bytes] | None:
    """Stop all ranks if one has stopped, and continue all if that one has continued.

    Args:
        children: one process for each rank.
        stopped: the rank that stopped the others.

    Returns:
        The rank that stops the others from now on, or None.
    """
    if stopped is None:
        stopped = next((child for child in children if _has_changed(child, os.WSTOPPED)), None)
        if stopped:
            _signal_others(children, stopped, signal.SIGSTOP)
        return stopped
    if stopped.poll() is None and not _has_changed(stopped, os.WCONTINUED):
        return stopped
    _signal_others(children, stopped, signal.SIGCONT)
    return None


def _signal_others(children: list[subprocess.Popen[bytes]], one: subprocess.Popen[bytes], number: int) -> None:
    for child in children:
        if child is not one and child.poll() is None:
            os.kill(child.pid, number)


def _has_changed(child: subprocess.Popen[bytes], change: int) -> bool:
    """Return whether a child has stopped or continued (`os.WSTOPPED`, `os.WCONTINUED`) since the last call."""
    return child.poll() is None and os.waitid(os.P_PID, child.pid, change | os.WNOHANG) is not None


def _exit_code(children: list[subprocess.Popen[bytes]], *, quiet: bool) -> int:
    """Return the exit code of rank 0, or of a rank that failed; prints which ranks failed.

    Args:
        children: one process for each rank.
        quiet: whether ranks have reported their errors; then only a rank that failed without a report is named.
    """
    endings = {child.poll() for child in children}
    for name, code in signals.CODES.items():
        if endings == {-signal.Signals[name]}:  # before the ranks handled it, while they loaded
            return code
    failures: list[int] = []
    for rank, child in enumerate(children):
        if child.poll() is None:
            if not quiet:
                print(f"suite: rank {rank} was killed, because it did not end after another rank", file=sys.stderr)
            failures.append(1)
        elif child.returncode not in GOOD:
            killed = child.returncode < 0 and signal.Signals(-child.returncode).name
            ending = f"was killed by {killed}" if killed else f"ended with exit code {child.returncode}"
            # jax aborts the ranks that have not ended before rank 0
            if not (quiet and child.returncode in (REJECTED, -signal.SIGABRT)):
                print(f"suite: rank {rank} {ending}", file=sys.stderr)
            failures.append(child.returncode)
    return (2 if 2 in failures else 1) if failures else children[0].returncode


def _forward_signal(children: list[subprocess.Popen[bytes]], number: int, frame: FrameType | None) -> None:
    """Handle a signal that interrupts a run: send it to every rank."""
    for child in children:
        if child.poll() is None:
            os.kill(child.pid, number)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and all processes of its session."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
