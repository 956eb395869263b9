"""A run as a Slurm job, by submitit: submitted here, and joined there by every task of the job.

In the job each task is a process of submitit's that hears Slurm's signals; its child is a rank and joins the others as
any process does that somebody else has started (`suite.launch_joined`). Ninety seconds before its time is over, or when
it is pre-empted, a job gets SIGUSR2. Then all ranks write a checkpoint and end, the job is put in the queue again, and
goes on in the same directory.
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
from typing import Any

from suite import load, run
from suite.contract import UserError
from suite.track.console import patience

ENDED = (0, run.MISSED, *run.SIGNALS.values())  # exit codes of a rank that did not fail
MEANT_FOR_TASKS = (signal.SIGTERM, signal.SIGUSR2)  # some sites send these to everything that a task has started


def launch(
    config: dict[str, Any],
    command: Sequence[str],
    *,
    apart: bool = False,
    parent: str | None = None,
    tell: Callable[[Path], None] = lambda directory: None,
) -> int:
    """Submit a run; returns 0, or with `launch.wait=true` the run's exit code once the job is over.

    Args:
        config: one run's configuration.
        command: what was typed after `suite`.
        apart: whether the run should be a process of its own, which it is.
        parent: id of the sweep's MLflow run.
        tell: is told the run's directory.

    Raises:
        UserError: for what does not fit, what is not installed, and what Slurm refuses.
    """
    node = config["launch"]
    submitit()
    load.framework(config["backend"])
    asked = parameters(config)
    if config["repeat"] > 1 and not node["wait"]:
        raise UserError(f"repeat={config['repeat']}: replicates follow one another; type launch.wait=true")
    with patience(f"reading the data of {config['task']['name']}"):
        run.make_task(config)  # what is wrong with it is said here, and not hours later
    directory = run.directory(config)
    tell(directory)
    job = _submit(Job(config, list(command), parent), directory / "slurm", node, asked)
    print(f"job     {job.job_id}: {asked['nodes']} × {asked['tasks_per_node']} tasks")
    print(f"log     {directory / 'slurm' / f'{job.job_id}_0_log.out'}, and one of every other rank")
    print(f"result  {directory / 'result.json'}", flush=True)
    return _wait(job) if node["wait"] else 0


def submitit() -> Any:
    """The library.

    Raises:
        UserError: where it is not installed.
    """
    try:
        return importlib.import_module("submitit")
    except ModuleNotFoundError as error:
        raise UserError("launch=slurm: submitit is not installed; type: pip install -e '.[slurm]'") from error


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """What submitit is asked for.

    Raises:
        UserError: where the ranks cannot be shared out over nodes and tasks.
    """
    node, world = config["launch"], config["world"]
    nodes, alone = node["nodes"], config["backend"] == "jax"  # one process of jax has all devices of its node
    each = node["per_host"] or (1 if alone else max(1, world // nodes))
    if world % (nodes * each) or (not alone and world != nodes * each):
        over = f"{nodes} nodes of {each} tasks" if node["per_host"] else f"{nodes} nodes"
        raise UserError(f"world={world}: cannot be shared out over {over}; type world={nodes * each}")
    return {
        "name": config["task"]["name"],
        "nodes": nodes,
        "tasks_per_node": each,
        "timeout_min": node["minutes"],
        **({"cpus_per_task": node["cpus"]} if node["cpus"] else {}),
        "slurm_partition": node["partition"],
        "slurm_account": node["account"],
        "slurm_gres": node["gres"],
        "slurm_setup": list(node["setup"]),
        "slurm_srun_args": ["--kill-on-bad-exit=1"],  # the others would wait for a rank that failed
        "slurm_additional_parameters": dict(node["extra"]),
    }


def _submit(job: "Job", folder: Path, node: Mapping[str, Any], asked: Mapping[str, Any]) -> Any:
    """Hand the job to Slurm; submitit's handle of it.

    Raises:
        UserError: with what Slurm says where it refuses.
    """
    try:
        executor = submitit().AutoExecutor(folder, node["cluster"], slurm_max_num_timeout=node["restarts"])
        executor.update_parameters(**asked)
        return executor.submit(job)
    except (RuntimeError, ValueError) as error:  # what submitit raises
        hint = "; type launch.cluster=local to try the job on this machine" if node["cluster"] == "slurm" else ""
        raise UserError(f"launch=slurm: {' '.join(str(error).split())}{hint}") from error


def _wait(job: Any) -> int:
    """Wait for a job; the run's exit code."""
    try:
        return job.results()[0]
    except submitit().core.utils.UncompletedJobError:  # also of a job that failed
        logs = job.paths.folder / f"{job.job_id}_*_log.err"
        print(f"suite: job {job.job_id} failed, or was ended; see {logs}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"suite: job {job.job_id} goes on; scancel {job.job_id} ends it", file=sys.stderr)
        return run.SIGNALS["SIGINT"]


def rendezvous(job: Any) -> dict[str, Any]:
    """Who a task of a job is, and where rank 0 listens: keys of `launch` as `suite.launch_joined` reads them.

    Args:
        job: submitit.JobEnvironment, which has this from Slurm's own variables.
    """
    port = 20_000 + zlib.crc32(job.job_id.encode()) % 10_000  # below the range from which systems give ports away
    return {
        "rank": job.global_rank,
        "processes": job.num_tasks,
        "per_host": job.num_tasks // job.num_nodes,
        "address": f"{job.hostnames[0]}:{port}",
    }


@dataclass
class Job:
    """What every task of the job calls; submitit pickles it.

    Attributes:
        config: the run's.
        command: what was typed after `suite`.
        parent: id of the sweep's MLflow run.
    """

    config: dict[str, Any]
    command: list[str]
    parent: str | None
    rank: "subprocess.Popen[str] | None" = field(default=None, init=False, repr=False)

    def __call__(self) -> int:
        """Be one rank; its exit code.

        Raises:
            RuntimeError: where it failed, so that Slurm ends the others.
        """
        node = self.config["launch"] | rendezvous(submitit().JobEnvironment())
        told = {"config": self.config | {"launch": node}, "command": self.command, "parent": self.parent}
        self.rank = subprocess.Popen(
            [sys.executable, "-m", "suite.launch_joined"],
            stdin=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, MEANT_FOR_TASKS),
        )
        assert self.rank.stdin
        self.rank.stdin.write(json.dumps(told))
        self.rank.stdin.close()
        if (code := self.rank.wait()) not in ENDED:
            raise RuntimeError(f"rank {node['rank']} ended with {code}")
        return code

    def checkpoint(self) -> Any:
        """Let all ranks write a checkpoint and end, of which this one tells the others; what the queue holds then.

        submitit calls this for rank 0 in the middle of `wait`, whose lock it must not ask for.
        """
        if self.rank and self.rank.returncode is None:
            os.kill(self.rank.pid, signal.SIGINT)
            os.waitid(os.P_PID, self.rank.pid, os.WEXITED | os.WNOWAIT)
        return submitit().helpers.DelayedSubmission(Job(self.config, self.command, self.parent))
