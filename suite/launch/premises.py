"""Says what a run needs that this machine lacks: data, a framework, devices; and why it does not use a GPU."""

import importlib
import os
import shutil
import subprocess
from pathlib import Path

from suite import load
from suite.contract import Task, UserError
from suite.launch import checks, slurm
from suite.launch.job import make_task
from suite.settings.launch import LocalLaunch, SlurmLaunch
from suite.settings.run import AnyRun, BaselineRun, Run
from suite.threads import count_cores

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
        return make_task(run, directory), []
    except UserError as error:
        source = run.task.options().get("source", {})
        if "data_dir" not in source:
            raise
        reason, _, _ = str(error).partition(". ")
        advice = "" if source["data_dir"] or "data_dir=" in reason else "; set data_dir=DIRECTORY"
        return make_task(run, directory, absent=True), [f"data: {reason}{advice}"]


def check_places(run: Run) -> None:
    """Check that the run's processes can be placed, as its launcher does.

    Raises:
        UserError: naming what to set.
    """
    if isinstance(run.launch, LocalLaunch):
        checks.check_processes(run)
    elif isinstance(run.launch, SlurmLaunch):
        slurm.request_resources(run)


def list_missing(run: AnyRun) -> list[str]:
    """One line for each thing that this machine lacks: the framework, devices."""
    if isinstance(run, BaselineRun):
        return []
    reasons: list[str] = []
    try:
        load.check_framework(run.backend)
    except UserError as error:
        reasons.append(f"framework: {error}")
    if isinstance(run.launch, SlurmLaunch):
        try:
            slurm.import_submitit()
        except UserError as error:
            reasons.append(str(error))
        return reasons  # the job's devices are elsewhere
    world, cores, visible = run.world, count_cores(), count_gpus()
    if run.device == "cuda" or (run.device == "auto" and visible):
        if visible < world:
            reasons.append(f"{format_count(world, 'GPU')}; this machine has {visible or 'none'}")
    elif world > cores * RANKS_PER_CORE:
        reasons.append(f"{format_count(world, 'device')}; this machine has {format_count(cores, 'CPU core')}")
    return reasons


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that a run could use here, from the driver and CUDA_VISIBLE_DEVICES."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    present = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if named is None else min(present, len([name for name in named.split(",") if name.strip()]))


def explain_cpu(run: Run) -> str | None:
    """Return why `device=auto` takes the CPU of a machine that has a GPU; None if it does not."""
    if run.device != "auto" or not count_gpus():
        return None
    reason = importlib.import_module(f"suite.engine.{run.backend}_device").explain_cpu()
    return f"device=auto trains on the CPU, although this machine has a GPU: {reason}" if reason else None


def format_count(number: int, name: str) -> str:
    """A number of things in words, as in "2 GPUs"."""
    return f"{number:,} {name}{'s' if number != 1 else ''}"
