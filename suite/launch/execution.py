"""Executes one run on one rank, from its configuration to its result."""

import hashlib
import itertools
import os
import shlex
import signal
import sys
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from suite import disk, load, published
from suite import engine as backend
from suite.contract import Engine, Task, UserError
from suite.engine import pipeline
from suite.launch.gpus import explain_cpu
from suite.launch.segment import Reporter, Segment
from suite.record import dependencies, environment, record
from suite.record.log import Log
from suite.record.result import Header, Result
from suite.settings.effects import hash_run
from suite.settings.launch import ExternalLaunch, SlurmLaunch
from suite.settings.overrides import render_command
from suite.settings.run import AnyRun, BaselineRun, Run
from suite.track.console import show_patience
from suite.training import baseline, checkpoint, weights
from suite.training.absence import watch_absences

EXIT = {"reached": 0, "exhausted": 0, "diverged": 0, "failed": 1}
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}
MISSED = 3


def make_task(run: AnyRun, directory: Path | None = None, *, absent: bool = False) -> Task:
    """Make the task of a run, and check its batch against the number of devices.

    Args:
        run: the run.
        directory: the user's own configuration groups, for the commands in errors.
        absent: describe the task without its files, which are not here.

    Raises:
        UserError: if data is missing, or the batch cannot be divided among the devices.
    """
    member = load.load_member(run.task.module)
    load.check_names(member, "make", "VERSION")
    task: Task = load.make_member(member.make, run.task, "task", **({"absent": True} if absent else {}))
    load.check_names(task, *(name for name in (*Task.__annotations__, *vars(Task)) if not name.startswith("_")))
    if isinstance(run, Run) and run.init_from:
        task = weights.initialize_from(task, run.init_from)
    if empty := [split for split, count in task.data.samples.items() if not count]:
        raise UserError(
            f"{task.data.name}: no usable {task.data.unit} in the split {' and '.join(empty)}; "
            f"for details, run {render_command(f'suite data {run.task.name}', directory)}"
        )
    for easier, harder in itertools.pairwise(task.targets):
        if easier.metric == harder.metric and not easier.met({harder.metric: harder.value}):
            raise UserError(f"task.targets: {harder} is easier than {easier}, which it follows; put the easiest first")
    if isinstance(run, BaselineRun):
        load.check_names(load.load_member(run.baseline.module), "fit", "score")
        return task
    optimizer = load.load_member(run.optimizer.module)
    load.check_names(optimizer, "NEEDS")
    needs = optimizer.NEEDS
    for check in (backend.list_tables, backend.find_sparse):
        check(task, needs, run.optimizer)
    if run.partition:
        pipeline.check_pipeline(run, task)
    unit = run.world * run.accumulate * task.group
    if not run.partition and task.batch_size % unit:
        smaller = ", or a smaller task.bn_group" if task.group > 1 else ""
        raise UserError(
            f"task.batch_size={task.batch_size}: not divisible by world × accumulate × samples per group = "
            f"{run.world} × {run.accumulate} × {task.group} = {unit}; set task.batch_size="
            f"{max(1, task.batch_size // unit) * unit}{smaller}"
        )
    if task.eval_batch_size % run.world:
        raise UserError(
            f"task.eval_batch_size={task.eval_batch_size}: not divisible by world={run.world}; "
            f"set task.eval_batch_size={-(-task.eval_batch_size // run.world) * run.world}"
        )
    return task


def count_threads(run: AnyRun) -> int:
    """Return the number of threads of one process.

    `threads=auto` takes OMP_NUM_THREADS where the user has set it, else divides the cores among the processes of this
    host.
    """
    if run.threads != "auto":
        return run.threads
    launch = None if isinstance(run, BaselineRun) else run.launch
    if isinstance(launch, ExternalLaunch | SlurmLaunch) and launch.cpus:
        return launch.cpus
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    per_host = launch.per_host if isinstance(launch, ExternalLaunch | SlurmLaunch) else None
    local_processes = per_host or count_processes(run)
    return max(1, len(os.sched_getaffinity(0)) // int(local_processes))


def count_processes(run: AnyRun) -> int:
    """Return the number of processes: `launch.processes`; if it is auto, one per device in torch, and 1 in jax."""
    if isinstance(run, BaselineRun):
        return 1
    setting = run.launch.processes
    return (run.world if run.backend == "torch" else 1) if setting in ("auto", None) else int(setting)


def execute_run(
    run: AnyRun,
    task: Task,
    directory: Path,
    header: Header,
    console: Reporter | None,
    *,
    rank: int = 0,
) -> int:
    """Run one rank to the end, from the start or from a checkpoint.

    Args:
        run: the run.
        task: made from it.
        directory: the run's directory; all ranks read checkpoints there, and write theirs.
        header: of the run, as `make_header` returns it.
        console: shows the run; None on all ranks but 0.
        rank: of this process. Rank 0 writes the log and the result.

    Returns:
        The exit code.

    Raises:
        WriteError: if a file cannot be written. The last checkpoint remains, and no result is written.
        Exception: what this process failed with, if the run has several processes.
    """
    with ExitStack() as files:
        try:
            return _execute(run, task, directory, header, console, rank, files)
        except checkpoint.RanksFailed as error:
            if rank:
                return 2  # rank 0 prints the error for all ranks
            raise disk.WriteError(f"{error}; {checkpoint.advise_resumption(directory)}") from error
        except disk.WriteError as error:
            raise disk.WriteError(f"{error}; {checkpoint.advise_resumption(directory)}") from error


def _execute(
    run: AnyRun,
    task: Task,
    directory: Path,
    header: Header,
    console: Reporter | None,
    rank: int,
    files: ExitStack,
) -> int:
    """`execute` without the advice on write errors; `files` closes the log."""
    if console:
        console.opening()
    prepare_backend(run)
    engine = _make_engine(run, task, console) if isinstance(run, Run) else None
    if console and isinstance(run, Run) and (reason := explain_cpu(run)):
        print(f"note: {reason}", flush=True)
    ranks, world = (engine.local_ranks, run.world) if isinstance(run, Run) and engine else ((0,), 1)
    restored = checkpoint.load_checkpoint(directory, hash_run(run), ranks=ranks, world=world)
    log = None
    if rank == 0:
        log = Log(directory / "events.jsonl", restored[1]["log"] if restored else None)
        files.callback(log.close)
    with _signals(patient=engine is not None) as received, watch_absences() as absences:
        segment = Segment(
            run,
            task,
            directory,
            engine,
            log,
            console,
            single_process=count_processes(run) == 1,
            made_progress=restored is not None,
            absences=absences,
        )
        try:
            finished = segment.train(restored, received)
        except UserError:
            raise
        except KeyboardInterrupt as interrupt:
            print(f"interrupted ({interrupt}): a baseline has no checkpoints; the same command fits it again")
            return SIGNALS[str(interrupt)]
        except Exception as error:
            finished = segment.failure(error)
            if finished is None:
                return EXIT["failed"]
    kind = finished.outcome["kind"]
    if kind == "interrupted":
        if console:
            console.interrupted(directory, finished)
        return SIGNALS[finished.outcome["signal"]]
    if console is None:
        return EXIT[kind]
    assert log is not None  # rank 0 has both
    return _write_result(run, task, directory, header, console, log)


def _make_engine(run: Run, task: Task, console: Reporter | None) -> Engine:
    """Make the run's engine; show the plan of a pipeline.

    Raises:
        UserError: the task's or the optimizer's file for the backend does not define `make`.
    """
    for module in (run.task.module, run.optimizer.module):
        load.check_names(load.load_half(module, run.backend), "make")
    if not run.partition:
        return load.load_half("suite.engine", run.backend).Engine(task, run)
    with show_patience("planning the stages of the model") if console else nullcontext():
        engine = load.load_half("suite.engine.pipeline", run.backend).Engine(task, run)
    if console:
        print(engine.pipeline.plan, flush=True)
    return engine


def _write_result(run: AnyRun, task: Task, directory: Path, header: Header, console: Reporter, log: Log) -> int:
    """Compute the result from the log, write it, remove the checkpoint and show the result; return the exit code.

    Raises:
        UserError: if the log is not that of one run.
        WriteError: if a file cannot be written.
    """
    rows = published.find_rows(run.task.name)
    log.state()  # raises if the file is gone
    with disk.report_errors(directory / "events.jsonl"):
        events = record.read_events(directory / "events.jsonl")
    try:
        result = record.compute_result(
            events,
            run=run,
            targets=task.targets,
            header=header,
            data=record.describe_data(task.data),
            published=[row.id for row in rows],
        )
    except record.LogError as error:
        raise UserError(
            f"{directory / 'events.jsonl'}: {error}. No result is written: delete {directory}, or choose another "
            "run_dir=, and run the same command again"
        ) from error
    record.write_json(directory / "result.json", result)
    checkpoint.remove_checkpoint(directory)
    console.closing(result, directory / "result.json", rows)
    return exit_code(run, result)


def exit_code(run: AnyRun, result: Result) -> int:
    """Return the exit code of a finished run: 0, 1 (failed) or 3 (target missed under require=target)."""
    if run.require == "target" and not all(target["reached"] for target in result["targets"]):
        return MISSED
    return EXIT[result["outcome"]["kind"]]


def make_header(run: AnyRun, command: list[str], task: Task) -> Header:
    """Return the header of an execution: what is known before it starts."""
    facts = environment.capture_environment() | {"data": dependencies.hash_data(task.data)}
    if code := dependencies.hash_outside_code(run.plain()):
        facts["members"] = code
    if isinstance(run, Run) and run.init_from:
        facts["initial_weights"] = weights.identify_weights(run.init_from)
    if isinstance(run, Run) and run.decisions:
        facts["decisions"] = hashlib.sha256(disk.read_text(Path(run.decisions), None).encode()).hexdigest()
    threads = count_threads(run)
    device = run.device if isinstance(run, Run) else "cpu"
    return {
        "hash": hash_run(run),
        "execution_id": uuid.uuid4().hex,
        "fingerprint": environment.compute_fingerprint(facts, device=device, threads=threads),
        "task_version": load.load_member(run.task.module).VERSION,
        "environment": facts | {"threads": threads},
        "command": shlex.join(["suite", *command]),
    }


def prepare_backend(run: AnyRun) -> None:
    """Apply the process-wide settings that the framework reads at its first use."""
    if isinstance(run, BaselineRun):
        baseline.prepare(count_threads(run))
        return
    if run.backend == "torch":
        import torch

        torch.set_num_threads(count_threads(run))
        return
    flags = os.environ.get("XLA_FLAGS", "")
    local = run.world // count_processes(run)
    if local > 1 and run.device != "cuda" and "host_platform_device_count" not in flags:
        flags += f" --xla_force_host_platform_device_count={local}"
        # XLA's pool has one thread per core. Devices that wait for each other in a collective can occupy all threads
        # while a factorisation still needs one (jaxlib 0.10.2, two devices on two cores: 2 of 6 processes hung; with
        # 8 threads, 0 of 8)
        os.environ.setdefault("NPROC", str(4 * local))
    if run.deterministic and run.device != "cpu":
        flags += " --xla_gpu_deterministic_ops=true"
    os.environ["XLA_FLAGS"] = flags.strip()
    load.load_half("suite.engine", "jax").enable_cache()


@contextmanager
def _signals(*, patient: bool) -> Generator[list[str]]:
    """Handle SIGINT and SIGTERM inside the context.

    Args:
        patient: collect the names of the signals, for a run that checks the list after each step; a second signal ends
            the process at once. If False, a signal raises KeyboardInterrupt with its name.

    Yields:
        The names of the signals received so far.
    """
    received: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not patient:
            raise KeyboardInterrupt(name)
        if received:
            sys.exit(SIGNALS[name])
        received.append(name)

    previous = {name: signal.signal(signal.Signals[name], handler) for name in SIGNALS}
    try:
        yield received
    finally:
        for name, handler_before in previous.items():
            signal.signal(signal.Signals[name], handler_before)
