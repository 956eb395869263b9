"""Launches runs on this machine: in this process, or in child processes that end together.

Each rank of several, and every run of a sweep, is a child process; the parent imports no framework. Children are ended
by SIGKILL, together with the processes that they started, because jax processes ignore SIGTERM.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from suite import disk, load
from suite.contract import Task, UserError
from suite.launch import checks, directories, execution
from suite.record import environment, record
from suite.settings.run import AnyRun, Run
from suite.track.console import Console, show_patience
from suite.training import checkpoint

GRACE = 30.0  # seconds that the other ranks get to end after one has ended without failure
FAILED_GRACE = 3.0  # the same after a rank has failed
REJECTED = 2  # the exit code of bad usage
GOOD = (0, execution.MISSED, *execution.SIGNALS.values())  # exit codes of a rank that did not fail
START_FILES = ("events.jsonl", "config.yaml", "header.json", "lock")  # the files that the start of a run writes


def launch(
    run: AnyRun,
    command: Sequence[str],
    *,
    apart: bool = False,
    parent: str | None = None,
    report_directory: Callable[[Path], None] = lambda directory: None,
) -> int:
    """Start, resume or show a run; return the exit code.

    Args:
        run: the run.
        command: what was typed after `suite`.
        apart: whether to run in a child process even with one rank.
        parent: id of the sweep's MLflow run.
        report_directory: called with the run's directory before the run.

    Raises:
        UserError: if the run is rejected; what its start has written is deleted.
    """
    if isinstance(run, Run):
        load.check_framework(run.backend)
        checks.check_processes(run)
    with show_patience(f"reading the data of {run.task.name}"):
        # before anything is written; the fingerprint, which decides on reuse, covers the data
        task = execution.make_task(run)
        checks.check_run(run, task)
        header, directory = find_directory(run, command, task, report_directory)
    if directory.state == "finished":
        return show_result(run, directory.path)
    checks.check_memory(run, task)
    ranks = execution.count_processes(run)
    print_passed(directory, header)
    lock, header = claim_directory(run, header, directory)
    try:
        if ranks == 1 and not apart:
            code = execution.execute_run(run, task, directory.path, header, Console(run, task))
        else:
            code = _children(run, directory.path, ranks, lock)
        conclude_run(run, directory.path, code, parent)
        return code
    except UserError:
        withdraw_start(directory.path)
        raise
    finally:
        os.close(lock)


def find_directory(
    run: AnyRun, command: Sequence[str], task: Task, report_directory: Callable[[Path], None]
) -> tuple[dict[str, Any], directories.Directory]:
    """Make a run's header, and find the directory in which the run starts, resumes or has finished."""
    header = execution.make_header(run, list(command), task)
    directory = directories.Directory(run, header["fingerprint"])
    report_directory(directory.path)
    return header, directory


def print_passed(directory: directories.Directory, header: dict[str, Any]) -> None:
    """Print why earlier runs of the same configuration are not resumed, and how to resume them anyway."""
    for path in directory.passed:
        earlier = directories.read_header(path)
        changed = " and ".join(environment.list_changes(earlier["environment"], header["environment"]))
        # with resume=anyway, the run was last continued in this environment
        reason = f"this has changed: {changed}" if changed else "it was continued with resume=anyway after a change"
        print(
            f"{path}: not resumed, because {reason}. A new run starts in {directory.path}. "
            "To continue the earlier run, set resume=anyway; its result will list the changes",
            flush=True,
        )


def claim_directory(
    run: AnyRun, header: dict[str, Any], directory: directories.Directory
) -> tuple[int, dict[str, Any]]:
    """Lock the run's directory and write the header.

    Returns:
        The lock's descriptor, and the header of the run in the directory.

    Raises:
        UserError: if another process uses the directory.
        WriteError: if this process cannot write there.
    """
    try:
        with disk.report_errors(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
            lock = _lock(directory.path)
    except disk.WriteError as error:
        raise disk.WriteError(f"{error}, and run the same command again") from error
    try:
        if directory.look() != directory.state:
            raise UserError(
                f"{directory.path}: another process has just used this directory; run the same command again"
            )
        if directory.state == "new":
            _start(run, header, directory.path)
        elif directory.state == "resumed":
            _adopt(header, directory.path)
    except disk.WriteError as error:
        os.close(lock)
        raise disk.WriteError(f"{error}, and run the same command again") from error
    except UserError:
        os.close(lock)
        raise
    return lock, directories.read_header(directory.path)


def withdraw_start(directory: Path) -> None:
    """Delete the files that the start of a rejected run has written, unless the run has made a step or a checkpoint."""
    if directories.has_begun(directory):
        return
    for name in START_FILES:
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: it contains files of the user
        directory.rmdir()


def conclude_run(run: AnyRun, directory: Path, code: int, parent: str | None, reason: str = "") -> None:
    """After a failure, print how to continue; send the run to MLflow.

    Args:
        run: the run.
        directory: the run's directory.
        code: the run's exit code.
        parent: id of the sweep's MLflow run.
        reason: of the failure; it precedes the advice, and ends in "; ".
    """
    if code == 1:
        print_failure(directory, reason)
    if (directory / "events.jsonl").exists():
        _track(run, directory, parent)


def print_failure(directory: Path, reason: str = "") -> None:
    """Print the reason of a failure and how to continue, unless the run has a result."""
    if (directory / "result.json").exists():
        return
    print(f"suite: {reason}{directory}: {checkpoint.advise_resumption(directory)}", file=sys.stderr)


def _track(run: AnyRun, directory: Path, parent: str | None) -> None:
    """Send the run to MLflow; if that fails, print how to send it later."""
    from suite.track import mlflow

    try:
        mlflow.finish_run(run, directory, parent=parent)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)


def _start(run: AnyRun, header: dict[str, Any], directory: Path) -> None:
    import yaml

    disk.replace_file(directory / "config.yaml", yaml.safe_dump(run.plain(), sort_keys=False))
    disk.replace_file(
        directory / "header.json", record.format_json(header, indent=1) + "\n"
    )  # last: a directory with a header is a run's


def _adopt(header: dict[str, Any], directory: Path) -> None:
    """Add to a resumed run's header what has changed since it was started (`resume=anyway`)."""
    earlier = directories.read_header(directory)
    if earlier["fingerprint"] == header["fingerprint"]:
        return
    changed = environment.list_changes(earlier["environment"], header["environment"])
    resumed = {"step": checkpoint.find_latest(directory) or 0, "changed": changed}
    earlier |= {name: header[name] for name in ("environment", "fingerprint", "task_version")}
    earlier["resumed_anyway"] = [*earlier.get("resumed_anyway", []), resumed]
    print(
        f"resume=anyway: continuing although this has changed: {' and '.join(changed)}; the result will list it",
        flush=True,
    )
    disk.replace_file(directory / "header.json", record.format_json(earlier, indent=1) + "\n")


def _lock(directory: Path) -> int:
    import fcntl

    handle = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"{directory}: another process is running this run; wait for it, or choose another run_dir="
        ) from error
    return handle


def show_result(run: AnyRun, directory: Path) -> int:
    """Print the result of a finished run; return its exit code."""
    from suite import published

    path = directory / "result.json"
    with disk.report_damage(path, directories.ANOTHER):
        result = disk.read_json(path, directories.ANOTHER)
        console = Console(run, None)
        console.reused(directory)
        console.closing(result, path, published.find_rows(run.task.name))
        return execution.exit_code(run, result)


def _children(run: AnyRun, directory: Path, ranks: int, lock: int) -> int:
    """Run every rank in a child process with its own session; if one fails, end the others. Return the exit code.

    Each child receives the configuration through a pipe. The pipe closes when this process ends, and the child ends
    with it. Rank 0, which writes, holds the directory's lock together with this process.

    Raises:
        UserError: with the errors that the ranks reported, each message once.
    """
    address = f"127.0.0.1:{_free_port()}"
    threads = str(execution.count_threads(run))
    # gloo and NCCL would listen at the address of the host's name
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    variables = loopback | os.environ | {"OMP_NUM_THREADS": threads, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "suite.launch.worker", str(directory), str(ranks), address]
    errors, reports = os.pipe()  # ranks write their errors into `reports`
    os.set_blocking(errors, False)  # a process that a rank has started may keep the other end open
    children: list[subprocess.Popen[bytes]] = []
    restore_handlers = _forward_signals(children)
    try:
        for rank in range(ranks):
            child = subprocess.Popen(
                [*command, str(rank), str(reports)],
                env=variables | {"LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=[lock, reports] if rank == 0 else [reports],
            )
            children.append(child)
            assert child.stdin
            with contextlib.suppress(BrokenPipeError):  # the child has ended already; `_exit_code` reports it
                child.stdin.write(json.dumps(run.plain()).encode() + b"\n")
                child.stdin.flush()
        _await(children)
        error = _reported(errors)
        code = _exit_code(children, quiet=bool(error))
        if error:
            raise UserError(error)
        return code
    finally:
        restore_handlers()
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
    for name, code in execution.SIGNALS.items():
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


def _forward_signals(children: list[subprocess.Popen[bytes]]) -> Callable[[], None]:
    """Forward SIGINT and SIGTERM to every rank; return a function that restores the earlier handlers."""

    def handler(number: int, frame: Any) -> None:
        for child in children:
            if child.poll() is None:
                os.kill(child.pid, number)

    previous = {name: signal.signal(signal.Signals[name], handler) for name in execution.SIGNALS}

    def restore() -> None:
        for name, handler_before in previous.items():
            signal.signal(signal.Signals[name], handler_before)

    return restore


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and all processes of its session."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
