"""Starts runs: in this process, or as child processes that end together.

A run of several ranks, and every run of a sweep, is a process of its own; the parent imports no framework. Children
are killed by SIGKILL, with everything they started, because jax processes do not die of SIGTERM.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from suite import checkpoint, load, run
from suite.contract import UserError
from suite.track.console import patience

GRACE = 30.0  # seconds the other ranks get to end after one has ended well
FAILED_GRACE = 3.0  # and after one has failed


def launch(
    config: dict[str, Any],
    command: Sequence[str],
    *,
    apart: bool = False,
    parent: str | None = None,
    tell: Callable[[Path], None] = lambda directory: None,
) -> int:
    """Find the run's directory, then run it, resume it, or show what is there; returns the exit code.

    Args:
        config: one run's configuration.
        command: what was typed after `suite`.
        apart: in a process of its own, even with one rank.
        parent: id of the sweep's MLflow run.
        tell: is told the run's directory, before the run.
    """
    if "baseline" not in config:
        load.framework(config["backend"])
    header, directory = find(config, command, tell)
    if directory.state == "finished":
        return show(config, directory.path)
    ranks = run.processes(config)
    with patience(f"reading the data of {config['task']['name']}"):
        task = run.make_task(config)  # what is wrong with it is said once, and before anything is written
    lock, header = claim(config, header, directory)
    try:
        if ranks == 1 and not apart:
            code = run.execute(config, task, directory.path, header)
        else:
            code = _children(config, directory.path, ranks)
        conclude(config, directory.path, code, parent)
        return code
    finally:
        os.close(lock)


def find(
    config: dict[str, Any], command: Sequence[str], tell: Callable[[Path], None]
) -> tuple[dict[str, Any], run.Directory]:
    """A run's header, and the directory where it begins, goes on or is found finished."""
    header = run.make_header(config, list(command))
    directory = run.Directory(config, header["fingerprint"])
    tell(directory.path)
    return header, directory


def claim(config: dict[str, Any], header: dict[str, Any], directory: run.Directory) -> tuple[int, dict[str, Any]]:
    """Lock a directory that this process will write to: (the lock's descriptor, the header of the run in it).

    Raises:
        UserError: where another process has it.
    """
    directory.path.mkdir(parents=True, exist_ok=True)
    lock = _lock(directory.path)
    if directory.state == "new":
        _start(config, header, directory.path)
    return lock, json.loads((directory.path / "header.json").read_text())


def conclude(config: dict[str, Any], directory: Path, code: int, parent: str | None, why: str = "") -> None:
    """Say how a run that failed goes on, and why it did, and show in MLflow what there is."""
    if code == 1:
        failed(directory, why)
    if (directory / "events.jsonl").exists():
        _track(config, directory, parent)


def failed(directory: Path, why: str = "") -> None:
    """Say how a run goes on that failed, unless it has a result; `why` comes first."""
    if (directory / "result.json").exists():
        return
    step = checkpoint.step(directory)
    none = "no checkpoint, so the same command starts again; checkpoint_every=N writes them"
    how = none if step is None else f"the same command goes on from step {step:,}"
    print(f"suite: {why}{directory}: {how}", file=sys.stderr)


def _track(config: dict[str, Any], directory: Path, parent: str | None) -> None:
    """Show the run in MLflow; where that fails, say how to do it later."""
    from suite.track import mlflow

    try:
        mlflow.finish(config, directory, parent=parent)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)


def _start(config: dict[str, Any], header: dict[str, Any], directory: Path) -> None:
    import yaml

    (directory / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (directory / "header.json").write_text(json.dumps(header, indent=1) + "\n")


def _lock(directory: Path) -> int:
    import fcntl

    handle = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"{directory}: another process is running this; wait for it, or choose another run_dir="
        ) from error
    return handle


def show(config: dict[str, Any], directory: Path) -> int:
    """Print a finished run; its exit code."""
    from suite import published
    from suite.track.console import Console

    result = json.loads((directory / "result.json").read_text())
    console = Console(config, None)
    console.reused(directory)
    console.closing(result, directory / "result.json", published.rows_for(config["task"]["name"]))
    return run.exit_code(config, result)


def _children(config: dict[str, Any], directory: Path, ranks: int) -> int:
    """Run every rank as a child in a session of its own; if one fails, the others are ended too."""
    address = f"127.0.0.1:{_free_port()}"
    threads = str(run.threads_for(config))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        environment = os.environ | {"OMP_NUM_THREADS": threads, "PYTHONSAFEPATH": "1"}
        arguments = [sys.executable, "-m", "suite.worker", file.name, str(directory), str(ranks), address]
        children = [
            subprocess.Popen([*arguments, str(rank)], env=environment, start_new_session=True) for rank in range(ranks)
        ]
        forward = _forward(children)
        try:
            return _wait(children)
        finally:
            forward()
            for child in children:
                _kill(child)


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    """The exit code of rank 0, or of a rank that failed.

    When one rank has ended the others get `GRACE` seconds, or `FAILED_GRACE` if it ended badly.
    """
    good = (0, run.MISSED, *run.SIGNALS.values())
    ended: float | None = None
    while any(child.poll() is None for child in children):
        over = [child.returncode for child in children if child.poll() is not None]
        ended = ended if ended is not None or not over else time.monotonic()
        grace = FAILED_GRACE if any(code not in good for code in over) else GRACE
        if ended is not None and time.monotonic() - ended > grace:
            break
        time.sleep(0.02)
    bad = []
    for rank, child in enumerate(children):
        if child.poll() is None:
            print(f"suite: rank {rank} did not end after another had; killed", file=sys.stderr)
            bad.append(1)
        elif child.returncode not in good:
            killed = child.returncode < 0 and signal.Signals(-child.returncode).name
            how = f"was killed by {killed}" if killed else f"ended with {child.returncode}"
            print(f"suite: rank {rank} {how}", file=sys.stderr)
            bad.append(child.returncode)
    return (2 if 2 in bad else 1) if bad else children[0].returncode


def _forward(children: list[subprocess.Popen[bytes]]) -> Any:
    """Pass Ctrl-C and SIGTERM on to every rank; returns what undoes it."""

    def handler(number: int, frame: Any) -> None:
        for child in children:
            if child.poll() is None:
                os.kill(child.pid, number)

    before = {name: signal.signal(signal.Signals[name], handler) for name in run.SIGNALS}

    def undo() -> None:
        for name, old in before.items():
            signal.signal(signal.Signals[name], old)

    return undo


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything in its session."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
