"""Runs as one process of several that torchrun, a scheduler or a person has started, on one host or many.

`launch.rank`, `launch.processes` and `launch.address` are this process's rank, the number of processes, and the address
at which rank 0 listens. conf/launch/torchrun.yaml and jax.yaml read them from the environment, and `suite.launch.slurm`
gets them from the job. Rank 0 decides whether the run is new, resumed or finished, and broadcasts its decision.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from suite import load, orphan, output
from suite.contract import Task, UserError
from suite.launch import checks, ending, execution, peer_failure, rendezvous
from suite.launch.directories import Decision, Directory, withdraw_start
from suite.launch.job import Job, count_threads, make_header, make_task
from suite.record.result import Header
from suite.settings.effects import hash_run
from suite.settings.launch import ExternalLaunch
from suite.settings.overrides import separate_directory
from suite.settings.run import Run, read_run
from suite.training import checkpoint


def launch(
    run: Run,
    command: Sequence[str],
    *,
    apart: bool = False,
    parent: str | None = None,
    report_directory: Callable[[Path], None] = lambda directory: None,
) -> NoReturn:
    """Join the other processes and run; end this process with the run's exit code.

    The arguments are those of `suite.launch.local.launch`; a run of a sweep is rejected.

    Raises:
        UserError: if a setting is missing or does not fit, or not all processes join.
    """
    rank, ranks = check_launch(run, apart=apart)
    node = settings_of(run)
    assert node.address
    agent = "TORCHELASTIC_RUN_ID" in os.environ  # torchrun's agent is the parent; it has connected the processes
    if agent:
        orphan.end_with_parent()
    # the number of ranks on this host, in torchrun's variable
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(run.world // ranks * int(node.per_host)))
    os.environ.setdefault("LOCAL_RANK", os.environ.get("SLURM_LOCALID", str(rank)))
    task, threads = make_task(run, separate_directory(command)[0]), count_threads(run, ranks)
    checks.check_run(run, task)
    checks.check_memory(run, task)
    if not agent:
        try:
            rendezvous.meet_ranks(rank, ranks, node.address, node.deadline)
        except UserError as error:
            raise UserError(f"rank {rank}: {error}") from error
    execution.prepare_backend(run, ranks, threads)
    backend = load.load_half("suite.engine.ranks", run.backend)
    job: Job | None = None
    hosts: list[str] = []
    reason = ""
    try:
        connect = partial(backend.connect, rank, ranks, node.address, node.deadline, run.device)
        connect_ranks(connect, ranks, node.address)
        hosts = backend.gather(peer_failure.find_address(node.address))
        decide = partial(_decide, run, task, threads, command, report_directory)
        decision = backend.broadcast(decide() if rank == 0 else Decision())
        if decision.header:
            job = Job(run, task, ranks, threads, Header.read(decision.header), Path(decision.directory))
        code = _run(run, job, decision, rank)
    except UserError as error:
        print(f"suite: rank {rank}: {error}", file=sys.stderr)
        code = 2
        if rank == 0 and job:
            withdraw_start(job.directory)
    except Exception as error:  # not raised: jax's clean-up would wait for ranks that wait for this one
        traceback.print_exc()
        code, reason = 1, f"rank {rank}: {peer_failure.explain_failure(error, rank, hosts)}; "
    if code not in (1, 2):
        backend.disconnect()
    if rank == 0 and job:
        ending.conclude_job(job, code, parent, reason)
    elif code == 1 and job:
        ending.print_failure(job.directory, reason)  # rank 0 may be the one that was lost
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # for the reason given in suite.launch.worker


def settings_of(run: Run) -> ExternalLaunch:
    """Return the settings of this launcher."""
    assert isinstance(run.launch, ExternalLaunch)
    return run.launch


def connect_ranks(connect: Callable[[], None], ranks: int, address: str) -> None:
    """Connect this process to the others with `connect`, by the framework's own means.

    Raises:
        UserError: if that fails, with the first line of the framework's error.
    """
    try:
        connect()
    except Exception as error:  # each framework raises its own types
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"cannot join the {ranks} ranks at {address}: {reason}; start all ranks again") from error


def check_launch(run: Run, *, apart: bool = False) -> tuple[int, int]:
    """Check the launch settings.

    Returns:
        This process's rank, and the number of processes.

    Raises:
        UserError: if a setting is missing, or does not fit the rest of the configuration.
    """
    node, world = settings_of(run), run.world
    name = node.name
    load.check_framework(run.backend)
    if apart:
        raise UserError(f"launch={name}: accepts one run only; for a sweep or repeat=, set launch=local")
    if run.backend not in node.backends:
        raise UserError(f"launch={name}: does not support backend={run.backend}; use launch=jax")
    for key, value in (("rank", node.rank), ("processes", node.processes), ("address", node.address)):
        if value is None:
            raise UserError(f"launch.{key}: missing; {node.hint}")
    rank, ranks = checks.parse_whole("launch.rank", node.rank), checks.parse_whole("launch.processes", node.processes)
    if not 0 <= rank < ranks:
        raise UserError(f"launch.rank={rank}: with launch.processes={ranks}, set a rank from 0 to {ranks - 1}")
    if world % ranks or (run.backend == "torch" and world != ranks):
        rule = "torch needs one per device" if run.backend == "torch" else "they cannot share the devices equally"
        raise UserError(f"world={world}: {ranks} processes were started, and {rule}; set world={ranks}")
    return rank, ranks


def _decide(
    run: Run, task: Task, threads: int, command: Sequence[str], report_directory: Callable[[Path], None]
) -> Decision:
    """Decide on rank 0 how to run; the process holds the directory's lock until it ends."""
    try:
        directory = Directory(run, make_header(run, task, threads, command))
        report_directory(directory.path)
        run_hash, place = directory.header.hash, str(directory.path.resolve())
        if directory.state == "finished":
            return Decision(run_hash, place, code=ending.show_result(run, directory.path))
        directory.print_passed()
        _, header = directory.claim()
        return Decision(run_hash, place, header=header.plain(), step=checkpoint.find_latest(directory.path))
    except UserError as error:
        return Decision(error=str(error))


def _run(run: Run, job: Job | None, decision: Decision, rank: int) -> int:
    """Run as rank 0 has decided; return the exit code.

    Raises:
        UserError: if rank 0 rejected the run, or this process has another configuration or another directory.
    """
    if decision.error:
        raise UserError(decision.error)
    if rank and decision.hash != hash_run(run):
        raise UserError("this process has a different configuration than rank 0; run the same command for every rank")
    if decision.code is not None:
        return decision.code
    assert job is not None  # of a run without a code
    if checkpoint.find_latest(job.directory) != decision.step:
        raise UserError(
            f"{job.directory}: this host does not see the files that rank 0 sees here; choose a run_dir= on a file "
            "system that all hosts share"
        )
    with peer_failure.watch_peers(rank, job.directory):
        return execution.execute_job(job, rank=rank)


def main() -> int:
    """Launch the run in the first line of standard input: {"run", "command", "parent"} as JSON.

    The process that wrote the line keeps the pipe open; this process ends when the pipe closes.

    Returns:
        2, the exit code of bad usage. Otherwise `launch` ends the process.
    """
    message = json.loads(sys.stdin.readline())
    orphan.end_with_pipe(sys.stdin.fileno())
    load.search_working_directory()
    try:
        run = read_run(message["run"])
        assert isinstance(run, Run)
        launch(run, message["command"], parent=message["parent"])
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    with output.drop_unwritable():
        code = main()
    sys.exit(code)
