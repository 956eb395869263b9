"""Launches runs on this machine: in this process, or in child processes that end together.

Each rank of several, and every run of a sweep, is a child process (`local_ranks.py`); the parent imports no framework.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from suite import disk, load
from suite.contract import Task, UserError
from suite.launch import checks, directories, execution
from suite.launch.local_ranks import run_ranks
from suite.record import environment, record
from suite.record.result import Continuation, Header
from suite.settings.overrides import separate_directory
from suite.settings.run import AnyRun, Run
from suite.track.console import Console, show_patience
from suite.training import checkpoint

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
        task = execution.make_task(run, separate_directory(command)[0])
        checks.check_run(run, task)
        header, directory = find_directory(run, command, task, report_directory)
    if directory.state == "finished":
        return show_result(run, directory.path, brief=apart)
    checks.check_memory(run, task)
    ranks = execution.count_processes(run)
    print_passed(directory, header)
    lock, header = claim_directory(run, header, directory)
    try:
        if ranks == 1 and not apart:
            code = execution.execute_run(run, task, directory.path, header, Console(run, task))
        else:
            code = run_ranks(run, directory.path, ranks, lock, brief=apart)
        conclude_run(run, directory.path, code, parent)
        return code
    except UserError:
        withdraw_start(directory.path)
        raise
    finally:
        os.close(lock)


def find_directory(
    run: AnyRun, command: Sequence[str], task: Task, report_directory: Callable[[Path], None]
) -> tuple[Header, directories.Directory]:
    """Make a run's header, and find the directory in which the run starts, resumes or has finished."""
    header = execution.make_header(run, list(command), task)
    directory = directories.Directory(run, header["fingerprint"])
    report_directory(directory.path)
    return header, directory


def print_passed(directory: directories.Directory, header: Header) -> None:
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


def claim_directory(run: AnyRun, header: Header, directory: directories.Directory) -> tuple[int, Header]:
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


def _start(run: AnyRun, header: Header, directory: Path) -> None:
    import yaml

    disk.replace_file(directory / "config.yaml", yaml.safe_dump(run.plain(), sort_keys=False))
    disk.replace_file(
        directory / "header.json", record.format_json(header, indent=1) + "\n"
    )  # last: a directory with a header is a run's


def _adopt(header: Header, directory: Path) -> None:
    """Add to a resumed run's header what has changed since it was started (`resume=anyway`)."""
    earlier = directories.read_header(directory)
    if earlier["fingerprint"] == header["fingerprint"]:
        return
    changed = environment.list_changes(earlier["environment"], header["environment"])
    resumed: Continuation = {"step": checkpoint.find_latest(directory) or 0, "changed": changed}
    earlier["environment"], earlier["fingerprint"] = header["environment"], header["fingerprint"]
    earlier["task_version"] = header["task_version"]
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


def show_result(run: AnyRun, directory: Path, *, brief: bool = False) -> int:
    """Print the result of a finished run; return its exit code."""
    from suite import published

    path = directory / "result.json"
    with disk.report_damage(path, directories.ANOTHER):
        result = disk.read_json(path, directories.ANOTHER)
        console = Console(run, None, brief=brief)
        console.reused(directory)
        console.closing(result, path, published.find_rows(run.task.name))
        return execution.exit_code(run, result)
