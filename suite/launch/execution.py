"""Executes a job on one rank: prepares the framework, makes the engine, and trains until the run ends."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType

from suite import disk, load, signals
from suite.contract import Engine, UserError
from suite.launch.ending import EXIT, write_result
from suite.launch.job import Job
from suite.launch.premises import explain_cpu
from suite.launch.segment import Segment
from suite.record.log import Log
from suite.settings.run import AnyRun, BaselineRun, Run
from suite.threads import count_cores
from suite.track.console import Console, show_patience
from suite.training import baseline, checkpoint
from suite.training.absence import watch_absences


def execute_job(job: Job, *, rank: int = 0, brief: bool = False) -> int:
    """Run one rank to the end, from the start or from a checkpoint.

    Args:
        job: the job.
        rank: of this process. Rank 0 writes the log and the result, and shows the run.
        brief: what the console leaves out.

    Returns:
        The exit code.

    Raises:
        WriteError: if a file cannot be written. The last checkpoint remains, and no result is written.
        Exception: what this process failed with, if the run has several processes.
    """
    console = Console(job.run, job.task, brief=brief) if rank == 0 else None
    with ExitStack() as files:
        try:
            return _execute(job, console, files)
        except checkpoint.RanksFailed as error:
            if rank:
                return 2  # rank 0 prints the error for all ranks
            raise disk.WriteError(f"{error}; {checkpoint.advise_resumption(job.directory)}") from error
        except disk.WriteError as error:
            raise disk.WriteError(f"{error}; {checkpoint.advise_resumption(job.directory)}") from error


def _execute(job: Job, console: Console | None, files: ExitStack) -> int:
    """`execute_job` without the advice on write errors; `files` closes the log."""
    run, log = job.run, None
    if console:
        console.opening()
    prepare_backend(run, job.processes, job.threads)
    engine = _make_engine(run, job, console) if isinstance(run, Run) else None
    if console and isinstance(run, Run) and (reason := explain_cpu(run)):
        print(f"note: {reason}", flush=True)
    ranks, world = (engine.local_ranks, run.world) if isinstance(run, Run) and engine else ((0,), 1)
    restored = checkpoint.load_checkpoint(job.directory, job.hash, ranks=ranks, world=world)
    if console:
        log = Log(job.directory / "events.jsonl", restored[1]["log"] if restored else None)
        files.callback(log.close)
    with _signals(patient=engine is not None) as received, watch_absences() as absences:
        segment = Segment(job, engine, log, console, made_progress=restored is not None, absences=absences)
        try:
            finished = segment.train(restored, received)
        except UserError:
            raise
        except KeyboardInterrupt as interrupt:
            print(f"interrupted ({interrupt}): a baseline has no checkpoints; the same command fits it again")
            return signals.CODES[str(interrupt)]
        except Exception as error:
            finished = segment.failure(error)
            if finished is None:
                return EXIT["failed"]
    kind = finished.outcome["kind"]
    if kind == "interrupted":
        if console:
            console.interrupted(job.directory, finished)
        return signals.CODES[finished.outcome["signal"]]
    return write_result(job, console, log) if console and log else EXIT[kind]


def _make_engine(run: Run, job: Job, console: Console | None) -> Engine:
    """Make the run's engine; show the plan of a pipeline.

    Raises:
        UserError: the task's or the optimizer's file for the backend does not define `make`.
    """
    if not run.partition:
        return load.load_half("suite.engine", run.backend).Engine(job.task, run)
    with show_patience("planning the stages of the model") if console else nullcontext():
        engine = load.load_half("suite.engine.pipeline", run.backend).Engine(job.task, run)
    if console:
        print(engine.pipeline.plan, flush=True)
    return engine


def prepare_backend(run: AnyRun, processes: int, threads: int) -> None:
    """Apply the process-wide settings that the framework reads at its first use; a second call changes nothing."""
    if isinstance(run, BaselineRun):
        baseline.prepare(threads)
        return
    if run.backend == "torch":
        import torch

        torch.set_num_threads(threads)
        return
    flags = os.environ.get("XLA_FLAGS", "")
    local = run.world // processes
    if local > 1 and run.device != "cuda" and "host_platform_device_count" not in flags:
        flags += f" --xla_force_host_platform_device_count={local}"
        # XLA's pool has one thread per core. Devices that wait for each other in a collective can occupy all threads
        # while a factorisation still needs one (jaxlib 0.10.2, two devices on two cores: 2 of 6 processes hung; with
        # 8 threads, 0 of 8)
        os.environ.setdefault("NPROC", str(4 * local))
    elif count_cores() < len(os.sched_getaffinity(0)):
        os.environ.setdefault("NPROC", str(count_cores()))  # XLA's pool has one thread per core, whatever the quota
    if run.deterministic and run.device != "cpu":
        flags += " --xla_gpu_deterministic_ops=true"
    os.environ["XLA_FLAGS"] = flags.strip()
    load.load_half("suite.engine", "jax").enable_cache()


@contextmanager
def _signals(*, patient: bool) -> Generator[list[str]]:
    """Handle the signals that interrupt a run inside the context.

    Args:
        patient: collect the names of the signals, for a run that checks the list after each step; a second signal ends
            the process at once, unless it is SIGHUP: where a terminal closes, both shell and kernel send it. If False,
            a signal raises KeyboardInterrupt with its name.

    Yields:
        The names of the signals received so far.
    """
    received: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not patient:
            raise KeyboardInterrupt(name)
        if received and name != "SIGHUP":
            sys.exit(signals.CODES[name])
        received.append(name)

    with signals.handle_signals(handler, *signals.CODES):
        yield received
