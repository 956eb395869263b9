"""Submits a run as a Slurm job with submitit. Every task of the job is one rank.

In the job, each task is a process of submitit that receives Slurm's signals. Its child process is the rank, which joins
the others with `suite.launch.external`. Ninety seconds before its time is over, or when it is pre-empted, a job
receives SIGUSR2. Then all ranks write a checkpoint and end. The job is requeued and continues in the same directory.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from suite import load, signals
from suite.contract import UserError
from suite.launch import checks, directories, ending
from suite.launch.job import make_task
from suite.settings.effects import hash_run
from suite.settings.launch import ExternalLaunch, SlurmLaunch
from suite.settings.overrides import separate_directory
from suite.settings.run import Run
from suite.track.console import show_patience

ENDED = (0, ending.MISSED, *signals.CODES.values())  # exit codes of a rank that did not fail
MEANT_FOR_TASKS = (signal.SIGTERM, signal.SIGUSR2)  # some sites send these to every process that a task has started


def launch(
    run: Run,
    command: Sequence[str],
    *,
    apart: bool = False,
    parent: str | None = None,
    report_directory: Callable[[Path], None] = lambda directory: None,
) -> int:
    """Submit a run; return 0, or with `launch.wait=true` wait for the job and return the run's exit code.

    The arguments are those of `suite.launch.local.launch`; `apart` is ignored, because every run is a separate job.

    Raises:
        UserError: if the settings do not fit, submitit is not installed, or Slurm rejects the job.
    """
    node = settings_of(run)
    import_submitit()
    load.check_framework(run.backend)
    resources = request_resources(run)
    if run.repeat > 1 and not node.wait:
        raise UserError(f"repeat={run.repeat}: replicates run one after another; set launch.wait=true")
    with show_patience(f"reading the data of {run.task.name}"):
        # report errors now, and not when the job starts
        checks.check_run(run, make_task(run, separate_directory(command)[0]))
    directory = directories.locate_run(run, hash_run(run))
    report_directory(directory)
    job = _submit(RankStarter(run, list(command), parent), directory / "slurm", node, resources)
    print(f"job     {job.job_id}: {resources['nodes']} × {resources['tasks_per_node']} tasks")
    print(f"log     {directory / 'slurm' / f'{job.job_id}_0_log.out'}, and one log for every other rank")
    print(f"result  {directory / 'result.json'}", flush=True)
    return _wait(job) if node.wait else 0


def import_submitit() -> ModuleType:
    """Import submitit.

    Raises:
        UserError: if it is not installed.
    """
    try:
        return importlib.import_module("submitit")
    except ModuleNotFoundError as error:
        raise UserError("launch=slurm: submitit is not installed; run: pip install -e '.[slurm]'") from error


def request_resources(run: Run) -> dict[str, load.Plain]:
    """Return the resources to request, as parameters of submitit.

    Raises:
        UserError: if the ranks cannot be divided among the nodes and tasks.
    """
    node, world = settings_of(run), run.world
    nodes, alone = node.nodes, run.backend == "jax"  # in jax, one process has all devices of its node
    tasks_per_node = node.per_host or (1 if alone else max(1, world // nodes))
    if world % (nodes * tasks_per_node) or (not alone and world != nodes * tasks_per_node):
        places = f"{nodes} nodes of {tasks_per_node} tasks" if node.per_host else f"{nodes} nodes"
        fewer = next(count for count in range(min(nodes, world), 0, -1) if not world % count)
        remedy = f"world={nodes * tasks_per_node}" if node.per_host else f"launch.nodes={fewer}"
        raise UserError(f"world={world}: cannot be divided among {places}; set {remedy}")
    return {
        "name": run.task.name,
        "nodes": nodes,
        "tasks_per_node": tasks_per_node,
        "timeout_min": node.minutes,
        **({"cpus_per_task": node.cpus} if node.cpus else {}),
        "slurm_partition": node.partition,
        "slurm_account": node.account,
        "slurm_gres": node.gres,
        "slurm_setup": list(node.setup),
        "slurm_srun_args": ["--kill-on-bad-exit=1"],  # otherwise the other ranks would wait for a rank that failed
        "slurm_additional_parameters": dict(node.extra),
    }


def _submit(job: "RankStarter", folder: Path, node: SlurmLaunch, resources: Mapping[str, load.Plain]) -> Any:
    """Submit the job; return submitit's handle.

    Raises:
        UserError: with Slurm's error if it rejects the job.
    """
    try:
        executor = import_submitit().AutoExecutor(folder, node.cluster, slurm_max_num_timeout=node.restarts)
        executor.update_parameters(**resources)
        return executor.submit(job)
    except (RuntimeError, ValueError) as error:  # the types that submitit raises
        hint = "; set launch.cluster=local to try the job on this machine" if node.cluster == "slurm" else ""
        raise UserError(f"launch=slurm: {' '.join(str(error).split())}{hint}") from error


def _wait(job: Any) -> int:
    """Wait for a job; return the run's exit code."""
    try:
        return job.results()[0]
    except import_submitit().core.utils.UncompletedJobError:  # raised for failed jobs, too
        logs = job.paths.folder / f"{job.job_id}_*_log.err"
        print(f"suite: job {job.job_id} failed or was cancelled; see {logs}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"suite: job {job.job_id} continues; to cancel it, run scancel {job.job_id}", file=sys.stderr)
        return signals.CODES["SIGINT"]


def settings_of(run: Run) -> SlurmLaunch:
    """Return the settings of this launcher."""
    assert isinstance(run.launch, SlurmLaunch)
    return run.launch


def describe_rank(job: Any, settings: SlurmLaunch) -> ExternalLaunch:
    """Return the rank of a task, and rank 0's address, as `suite.launch.external` reads them.

    Args:
        job: submitit.JobEnvironment, which reads Slurm's variables.
        settings: of this launcher.
    """
    port = 20_000 + zlib.crc32(job.job_id.encode()) % 10_000  # below the range of ephemeral ports
    return ExternalLaunch(
        module="suite.launch.external",
        name="slurm",
        hint="",
        backends=settings.backends,
        deadline=settings.deadline,
        cpus=settings.cpus,
        rank=job.global_rank,
        processes=job.num_tasks,
        per_host=job.num_tasks // job.num_nodes,
        address=f"{job.hostnames[0]}:{port}",
    )


@dataclass
class RankStarter:
    """Callable that every task of the job runs; submitit pickles it.

    Attributes:
        run: the run.
        command: what was typed after `suite`.
        parent: id of the sweep's MLflow run.
    """

    run: Run
    command: list[str]
    parent: str | None
    rank: "subprocess.Popen[str] | None" = field(default=None, init=False, repr=False)

    def __call__(self) -> int:
        """Run one rank in a child process; return its exit code.

        Raises:
            RuntimeError: if the rank failed, so that Slurm ends the others.
        """
        launch = describe_rank(import_submitit().JobEnvironment(), settings_of(self.run))
        run = self.run.model_copy(update={"launch": launch})
        job = {"run": run.plain(), "command": self.command, "parent": self.parent}
        self.rank = subprocess.Popen(
            [sys.executable, "-m", "suite.launch.external"],
            stdin=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, MEANT_FOR_TASKS),
        )
        assert self.rank.stdin
        self.rank.stdin.write(json.dumps(job) + "\n")
        self.rank.stdin.flush()  # the pipe stays open: the rank ends when this process does
        if (code := self.rank.wait()) not in ENDED:
            raise RuntimeError(f"rank {launch.rank} ended with exit code {code}")
        return code

    def checkpoint(self) -> Any:
        """Interrupt this rank, so that all ranks write a checkpoint and end; return the job to requeue.

        submitit calls this for rank 0 during `wait`; it therefore must not acquire the lock of `wait`.
        """
        if self.rank and self.rank.returncode is None:
            os.kill(self.rank.pid, signal.SIGINT)
            os.waitid(os.P_PID, self.rank.pid, os.WEXITED | os.WNOWAIT)
        return import_submitit().helpers.DelayedSubmission(RankStarter(self.run, self.command, self.parent))
