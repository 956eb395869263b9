"""Launches runs on this machine: in this process, or in child processes that end together.

Each rank of several, and every run of a sweep, is a child process (`local_ranks.py`); the parent imports no framework.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from suite import load
from suite.contract import UserError
from suite.launch import checks, ending, execution
from suite.launch.directories import Directory, withdraw_start
from suite.launch.job import Job, count_processes, count_threads, make_header, make_task
from suite.launch.local_ranks import run_ranks
from suite.settings.overrides import separate_directory
from suite.settings.run import AnyRun, Run
from suite.track.console import show_patience


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
    processes = count_processes(run)
    threads = count_threads(run, processes)
    with show_patience(f"reading the data of {run.task.name}"):
        # before anything is written; the fingerprint, which decides on reuse, covers the data
        task = make_task(run, separate_directory(command)[0])
        checks.check_run(run, task)
        directory = Directory(run, make_header(run, task, threads, command))
        report_directory(directory.path)
    if directory.state == "finished":
        return ending.show_result(run, directory.path, brief=apart)
    checks.check_memory(run, task)
    directory.print_passed()
    lock, header = directory.claim()
    job = Job(run, task, processes, threads, header, directory.path)
    try:
        alone = processes == 1 and not apart
        code = execution.execute_job(job) if alone else run_ranks(job, lock, brief=apart)
        ending.conclude_job(job, code, parent)
        return code
    except UserError:
        withdraw_start(directory.path)
        raise
    finally:
        os.close(lock)
