"""A job: a run with all that one process finds out before it trains. Nothing of it is asked again."""

import hashlib
import os
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from suite import disk, load, published
from suite.contract import Task, UserError
from suite.record import dependencies, environment
from suite.record.facts import Environment
from suite.record.origins import describe_origins
from suite.record.result import Header
from suite.settings.effects import hash_run
from suite.settings.launch import ExternalLaunch, SlurmLaunch
from suite.settings.overrides import render_command
from suite.settings.run import AnyRun, BaselineRun, Run
from suite.threads import count_cores
from suite.training import weights


@dataclass(frozen=True)
class Job:
    """A run that starts or resumes, as each of its processes knows it.

    Attributes:
        run: the run.
        task: made from it, and checked where the run was launched.
        processes: number of processes that share the run's devices.
        threads: of this process.
        header: of the run in the directory.
        directory: of the run; all ranks read checkpoints there, and write theirs.
    """

    run: AnyRun
    task: Task
    processes: int
    threads: int
    header: Header
    directory: Path

    @property
    def hash(self) -> str:
        """Hash of the run."""
        return self.header.hash

    @cached_property
    def rows(self) -> Sequence[published.Row]:
        """Every published row of the task; read where a result is written or sent, not on every rank."""
        return published.find_rows(self.run.task.name)


def make_task(run: AnyRun, directory: Path | None = None, *, absent: bool = False) -> Task:
    """Make the task of a run, with the initial weights that the run names.

    Args:
        run: the run.
        directory: the user's own configuration groups, for the commands in errors.
        absent: describe the task without its files, which are not here.

    Raises:
        UserError: if the task lacks a name of its contract, data is missing, or the weights are of another model.
    """
    load.check_names(run.task.member, "make", "VERSION")
    task: Task = run.task.build(**({"absent": True} if absent else {}))
    load.check_names(task, *(name for name in (*Task.__annotations__, *vars(Task)) if not name.startswith("_")))
    if isinstance(run, Run) and run.init_from:
        task = weights.initialize_from(task, run.init_from)
    if empty := [split for split, count in task.data.samples.items() if not count]:
        raise UserError(
            f"{task.data.name}: no usable {task.data.unit} in the split {' and '.join(empty)}; "
            f"for details, run {render_command(f'suite data {run.task.name}', directory)}"
        )
    return task


def count_processes(run: AnyRun) -> int:
    """Return the number of processes: `launch.processes`; if it is auto, one per device in torch, and 1 in jax."""
    if isinstance(run, BaselineRun):
        return 1
    setting = run.launch.processes
    return (run.world if run.backend == "torch" else 1) if setting in ("auto", None) else int(setting)


def count_threads(run: AnyRun, processes: int) -> int:
    """Return the number of threads of one process.

    `threads=auto` takes OMP_NUM_THREADS where the user has set it, else divides the cores that this process may use
    among the processes of this host.
    """
    if run.threads != "auto":
        return run.threads
    launch = None if isinstance(run, BaselineRun) else run.launch
    if isinstance(launch, ExternalLaunch | SlurmLaunch) and launch.cpus:
        return launch.cpus
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number for each nested level
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    per_host = launch.per_host if isinstance(launch, ExternalLaunch | SlurmLaunch) else None
    return max(1, count_cores() // int(per_host or processes))


def make_header(run: AnyRun, task: Task, threads: int, command: Sequence[str]) -> Header:
    """Return the header of a new execution: what is known before it starts; `command` is what was typed after `suite`.

    Raises:
        UserError: if the initial weights are damaged, or the recorded decisions cannot be read.
    """
    facts = environment.capture_environment() | {"data": dependencies.hash_data(task.data)}
    if code := dependencies.hash_outside_code(run.plain()):
        facts["members"] = code
    if origins := describe_origins(run.plain()):
        facts["origins"] = origins
    if isinstance(run, Run) and run.init_from:
        facts["initial_weights"] = weights.identify_weights(run.init_from)
    if isinstance(run, Run) and run.decisions:
        facts["decisions"] = hashlib.sha256(disk.read_text(Path(run.decisions), None).encode()).hexdigest()
    device = run.device if isinstance(run, Run) else "cpu"
    return Header(
        hash=hash_run(run),
        execution_id=uuid.uuid4().hex,
        fingerprint=environment.compute_fingerprint(facts, device=device, threads=threads),
        task_version=run.task.member.VERSION,
        environment=Environment.read(facts | {"threads": threads}),
        command=shlex.join(["suite", *command]),
    )
