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

from suite import load, orphan
from suite.contract import Task, UserError
from suite.launch import checks, execution, local, peer_failure, rendezvous
from suite.launch.directories import Decision
from suite.settings.effects import hash_run
from suite.settings.launch import ExternalLaunch
from suite.settings.overrides import separate_directory
from suite.settings.run import Run, read_run
from suite.track.console import Console
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

    Args:
        run: the run.
        command: what was typed after `suite`.
        apart: whether the run belongs to a sweep, which this launcher rejects.
        parent: id of a sweep's MLflow run.
        report_directory: called with the run's directory before the run.

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
    task = execution.make_task(run, separate_directory(command)[0])
    checks.check_run(run, task)
    checks.check_memory(run, task)
    if not agent:
        try:
            rendezvous.meet_ranks(rank, ranks, node.address, node.deadline)
        except UserError as error:
            raise UserError(f"rank {rank}: {error}") from error
    execution.prepare_backend(run)
    backend = load.load_half("suite.engine.ranks", run.backend)
    decision = Decision()
    hosts: list[str] = []
    reason = ""
    try:
        connect = partial(backend.connect, rank, ranks, node.address, node.deadline, run.device)
        connect_ranks(connect, ranks, node.address)
        hosts = backend.gather(peer_failure.find_address(node.address))
        decision = backend.broadcast(_decide(run, list(command), task, report_directory) if rank == 0 else Decision())
        code = _run(run, task, decision, rank)
    except UserError as error:
        print(f"suite: rank {rank}: {error}", file=sys.stderr)
        code = 2
        if rank == 0 and decision.header:
            local.withdraw_start(Path(decision.directory))
    except Exception as error:  # not raised: jax's clean-up would wait for ranks that wait for this one
        traceback.print_exc()
        code, reason = 1, f"rank {rank}: {peer_failure.explain_failure(error, rank, hosts)}; "
    if code not in (1, 2):
        backend.disconnect()
    if rank == 0 and decision.header:
        local.conclude_run(run, Path(decision.directory), code, parent, reason)
    elif code == 1 and decision.header:
        local.print_failure(Path(decision.directory), reason)  # rank 0 may be the one that was lost
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


def _decide(run: Run, command: list[str], task: Task, report_directory: Callable[[Path], None]) -> Decision:
    """Decide on rank 0 how to run; the process holds the directory's lock until it ends."""
    try:
        header, directory = local.find_directory(run, command, task, report_directory)
        place = str(directory.path.resolve())
        if directory.state == "finished":
            return Decision(hash_run(run), place, code=local.show_result(run, directory.path))
        local.print_passed(directory, header)
        _, header = local.claim_directory(run, header, directory)
        return Decision(hash_run(run), place, header=header, step=checkpoint.find_latest(directory.path))
    except UserError as error:
        return Decision(error=str(error))


def _run(run: Run, task: Task, decision: Decision, rank: int) -> int:
    """Run as rank 0 has decided; return the exit code.

    Raises:
        UserError: if rank 0 rejected the run, or this process has another configuration or another directory.
    """
    if decision.error:
        raise UserError(decision.error)
    if decision.hash != hash_run(run):
        raise UserError("this process has a different configuration than rank 0; run the same command for every rank")
    if decision.code is not None:
        return decision.code
    directory = Path(decision.directory)
    if checkpoint.find_latest(directory) != decision.step:
        raise UserError(
            f"{directory}: this host does not see the files that rank 0 sees here; choose a run_dir= on a file system "
            "that all hosts share"
        )
    assert decision.header is not None  # of a run without a code
    with peer_failure.watch_peers(rank, directory):
        console = Console(run, task) if rank == 0 else None
        return execution.execute_run(run, task, directory, decision.header, console, rank=rank)


def main() -> int:
    """Launch the run in the first line of standard input: {"run", "command", "parent"} as JSON.

    The process that wrote the line keeps the pipe open; this process ends when the pipe closes.

    Returns:
        2, the exit code of bad usage. Otherwise `launch` ends the process.
    """
    job = json.loads(sys.stdin.readline())
    orphan.end_with_pipe(sys.stdin.fileno())
    load.search_working_directory()
    try:
        run = read_run(job["run"])
        assert isinstance(run, Run)
        launch(run, job["command"], parent=job["parent"])
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
