"""Says what a run needs that this machine lacks: data, a framework, devices."""

import os
from pathlib import Path

from suite import load
from suite.contract import Task, UserError
from suite.launch import execution
from suite.launch.gpus import count_gpus
from suite.settings.run import AnyRun, BaselineRun

RANKS_PER_CORE = 4  # ranks that may share a core; such a run is slow but correct


def describe_task(run: AnyRun, directory: Path | None = None) -> tuple[Task, list[str]]:
    """Make the task, with or without its data; a task that reads a directory has shapes without it.

    Args:
        run: the run.
        directory: the user's own configuration groups, for the commands in errors.

    Returns:
        The task, and a line that says which data is missing, if any.

    Raises:
        UserError: for an error that is not about missing data.
    """
    try:
        return execution.make_task(run, directory), []
    except UserError as error:
        source = run.task.options().get("source", {})
        if "data_dir" not in source:
            raise
        reason, _, _ = str(error).partition(". ")
        advice = "" if source["data_dir"] or "data_dir=" in reason else "; set data_dir=DIRECTORY"
        return execution.make_task(run, directory, absent=True), [f"data: {reason}{advice}"]


def list_missing(run: AnyRun) -> list[str]:
    """One line for each thing that this machine lacks: the framework, devices."""
    if isinstance(run, BaselineRun):
        return []
    reasons: list[str] = []
    try:
        load.check_framework(run.backend)
    except UserError as error:
        reasons.append(f"framework: {error}")
    world, cores, visible = run.world, len(os.sched_getaffinity(0)), count_gpus()
    if run.device == "cuda" or (run.device == "auto" and visible):
        if visible < world:
            reasons.append(f"{format_count(world, 'GPU')}; this machine has {visible or 'none'}")
    elif world > cores * RANKS_PER_CORE:
        reasons.append(f"{format_count(world, 'device')}; this machine has {format_count(cores, 'CPU core')}")
    return reasons


def format_count(number: int, name: str) -> str:
    """A number of things in words, as in "2 GPUs"."""
    return f"{number:,} {name}{'s' if number != 1 else ''}"
