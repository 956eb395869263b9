"""How a run ends: its result, its exit code, its copy in MLflow, and the advice after a failure."""

import sys
from pathlib import Path

from suite import disk, published
from suite.contract import UserError
from suite.launch.directories import ANOTHER
from suite.launch.job import Job
from suite.record import record
from suite.record.log import Log
from suite.record.result import Result
from suite.settings.run import AnyRun
from suite.track.console import Console, make_printer
from suite.training import checkpoint

EXIT = {"reached": 0, "exhausted": 0, "diverged": 0, "failed": 1}
MISSED = 3


def write_result(job: Job, console: Console, log: Log) -> int:
    """Compute the result from the log, write it, remove the checkpoint and show the result; return the exit code.

    Raises:
        UserError: if the log is not that of one run.
        WriteError: if a file cannot be written.
    """
    directory, path = job.directory, job.directory / "events.jsonl"
    log.state()  # raises if the file is gone
    with disk.report_errors(path):
        events = record.read_events(path)
    try:
        entries = record.compute_entries(
            events,
            run=job.run,
            targets=job.task.targets,
            header=job.header,
            data=record.describe_data(job.task.data),
            published=[row.id for row in job.rows],
        )
    except record.LogError as error:
        raise UserError(
            f"{path}: {error}. No result is written: delete {directory}, or choose another run_dir=, and run the same "
            "command again"
        ) from error
    record.write_json(directory / "result.json", entries)
    result = record.read_result(directory / "result.json")
    checkpoint.remove_checkpoint(directory)
    console.closing(result, directory / "result.json", job.rows)
    return choose_exit_code(job.run, result)


def show_result(run: AnyRun, directory: Path, *, brief: bool = False) -> int:
    """Print the result of a run that finished earlier; return its exit code."""
    from suite.track import closing

    path = directory / "result.json"
    with disk.report_damage(path, ANOTHER):
        result = record.read_result(path, ANOTHER)
        print(f"this run has a result already: {path}; to run it again, set force=true")
        closing.show_result(make_printer(), result, path, published.find_rows(run.task.name), brief=brief)
        return choose_exit_code(run, result)


def choose_exit_code(run: AnyRun, result: Result) -> int:
    """Return the exit code of a finished run: 0, 1 (failed) or 3 (target missed under require=target)."""
    if run.require == "target" and not all(target.reached for target in result.targets):
        return MISSED
    return EXIT[result.outcome.kind]


def conclude_job(job: Job, code: int, parent: str | None, reason: str = "") -> None:
    """After a failure, print how to continue; send the run to MLflow, or print how to send it later.

    Args:
        job: the job.
        code: the run's exit code.
        parent: id of the sweep's MLflow run.
        reason: of the failure; it precedes the advice, and ends in "; ".
    """
    from suite.track import mlflow

    if code == 1:
        print_failure(job.directory, reason)
    if job.run.track.name == "none" or not (job.directory / "events.jsonl").exists():
        return
    try:
        mlflow.finish_run(job.run, job.directory, job.rows, parent=parent)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)


def print_failure(directory: Path, reason: str = "") -> None:
    """Print the reason of a failure and how to continue, unless the run has a result."""
    if (directory / "result.json").exists():
        return
    print(f"suite: {reason}{directory}: {checkpoint.advise_resumption(directory)}", file=sys.stderr)
