"""Executes one run on one rank, from its configuration to its result."""

import os
import shlex
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from suite import disk, load, published
from suite import engine as backend
from suite.contract import Task, UserError
from suite.engine import pipeline
from suite.launch.segment import Reporter, Segment
from suite.record import dependencies, environment, record
from suite.record.log import Log
from suite.settings.baseline import is_baseline
from suite.track.console import patience
from suite.training import baseline, checkpoint, weights

EXIT = {"reached": 0, "exhausted": 0, "diverged": 0, "failed": 1}
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}
MISSED = 3


def make_task(config: Mapping[str, Any]) -> Task:
    """Make the task of a configuration, and check its batch against the number of devices.

    Raises:
        UserError: if data is missing, or the batch cannot be divided among the devices.
    """
    node = config["task"]
    task: Task = load.made(load.common(node["module"]).make, node, "task")
    if config.get("init_from"):
        task = weights.initialized(task, config["init_from"])
    if empty := [split for split, count in task.data.samples.items() if not count]:
        raise UserError(
            f"{task.data.name}: no usable {task.data.unit} in the split {' and '.join(empty)}; "
            f"for details, type suite data {node['name']}"
        )
    if is_baseline(config):
        return task
    needs = load.common(config["optimizer"]["module"]).NEEDS
    for check in (backend.tables, backend.sparse):
        check(task, needs, config["optimizer"])
    if config.get("partition"):
        pipeline.check(config, task)
    unit = config["world"] * config["accumulate"] * task.group
    if not config.get("partition") and task.batch_size % unit:
        smaller = ", or a smaller task.bn_group" if "bn_group" in config["task"] else ""
        raise UserError(
            f"task.batch_size={task.batch_size}: not divisible by world × accumulate × samples per group = "
            f"{config['world']} × {config['accumulate']} × {task.group} = {unit}; type task.batch_size="
            f"{max(1, task.batch_size // unit) * unit}{smaller}"
        )
    if task.eval_batch_size % config["world"]:
        raise UserError(
            f"task.eval_batch_size={task.eval_batch_size}: not divisible by world={config['world']}; "
            f"type task.eval_batch_size={-(-task.eval_batch_size // config['world']) * config['world']}"
        )
    return task


def threads_for(config: Mapping[str, Any]) -> int:
    """The number of threads of one process.

    `threads=auto` takes OMP_NUM_THREADS where the user has set it, else divides the cores among the processes of this
    host.
    """
    if config["threads"] != "auto":
        return int(config["threads"])
    node = config.get("launch", {})
    if node.get("cpus"):  # the cores that a scheduler has given to each process
        return int(node["cpus"])
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    local_processes = node.get("per_host") or processes(config)
    return max(1, len(os.sched_getaffinity(0)) // int(local_processes))


def processes(config: Mapping[str, Any]) -> int:
    """The number of processes: `launch.processes`; if it is auto, one per device in torch, and 1 in jax."""
    if is_baseline(config):
        return 1
    setting = config["launch"]["processes"]
    return (config["world"] if config["backend"] == "torch" else 1) if setting == "auto" else int(setting)


def execute(
    config: dict[str, Any],
    task: Task,
    directory: Path,
    header: dict[str, Any],
    console: Reporter | None,
    *,
    rank: int = 0,
) -> int:
    """Run one rank to the end, from the start or from a checkpoint.

    Args:
        config: the run's configuration.
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
            return _execute(config, task, directory, header, console, rank, files)
        except checkpoint.RanksFailed as error:
            if rank:
                return 2  # rank 0 prints the error for all ranks
            raise disk.WriteError(f"{error}; {checkpoint.resumption(directory)}") from error
        except disk.WriteError as error:
            raise disk.WriteError(f"{error}; {checkpoint.resumption(directory)}") from error


def _execute(
    config: dict[str, Any],
    task: Task,
    directory: Path,
    header: dict[str, Any],
    console: Reporter | None,
    rank: int,
    files: ExitStack,
) -> int:
    """`execute` without the advice on write errors; `files` closes the log."""
    if console:
        console.opening()
    prepare_backend(config)
    engine = None if is_baseline(config) else _engine(config, task, console)
    ranks, world = (engine.local_ranks, config["world"]) if engine else ((0,), 1)
    restored = checkpoint.load(directory, record.config_hash(config), ranks=ranks, world=world)
    log = None
    if rank == 0:
        log = Log(directory / "events.jsonl", restored[1]["log"] if restored else None)
        files.callback(log.close)
    segment = Segment(
        config,
        task,
        directory,
        engine,
        log,
        console,
        single_process=processes(config) == 1,
        made_progress=restored is not None,
    )
    with _signals(patient=engine is not None) as received:
        try:
            finished = segment.run(restored, received)
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
    return _write_result(config, task, directory, header, console, log)


def _engine(config: Mapping[str, Any], task: Task, console: Reporter | None) -> Any:
    """Make the run's engine; show the plan of a pipeline."""
    if not config.get("partition"):
        return load.half("suite.engine", config["backend"]).Engine(task, config)
    with patience("planning the stages of the model") if console else nullcontext():
        engine = load.half("suite.engine.pipeline", config["backend"]).Engine(task, config)
    if console:
        print(engine.pipeline.plan, flush=True)
    return engine


def _write_result(
    config: dict[str, Any], task: Task, directory: Path, header: dict[str, Any], console: Reporter, log: Log
) -> int:
    """Compute the result from the log, write it, remove the checkpoint and show the result; return the exit code.

    Raises:
        UserError: if the log is not that of one run.
        WriteError: if a file cannot be written.
    """
    rows = published.rows_for(config["task"]["name"])
    log.state()  # raises if the file is gone
    with disk.writing(directory / "events.jsonl"):
        events = record.read_events(directory / "events.jsonl")
    try:
        result = record.result(
            events,
            config=config,
            targets=task.targets,
            header=header | {"data": record.data_record(task.data)},
            published=[row.id for row in rows],
        )
    except record.LogError as error:
        raise UserError(
            f"{directory / 'events.jsonl'}: {error}. No result is written: delete {directory}, or choose another "
            "run_dir=, and type the same command again"
        ) from error
    record.write(directory / "result.json", result)
    checkpoint.remove(directory)
    console.closing(result, directory / "result.json", rows)
    return exit_code(config, result)


def exit_code(config: Mapping[str, Any], result: Mapping[str, Any]) -> int:
    """The exit code of a finished run: 0, 1 (failed) or 3 (target missed under require=target)."""
    if config["require"] == "target" and not all(target["reached"] for target in result["targets"]):
        return MISSED
    return EXIT[result["outcome"]["kind"]]


def make_header(config: Mapping[str, Any], command: list[str], task: Task) -> dict[str, Any]:
    """The header of an execution: what is known before it starts."""
    facts = environment.capture() | {"data": dependencies.data_version(task.data)}
    if code := dependencies.outside_code(config):
        facts["members"] = code
    if config.get("init_from"):
        facts["initial_weights"] = weights.sha256(weights.located(config["init_from"]))
    threads = threads_for(config)
    return {
        "hash": record.config_hash(config),
        "execution_id": uuid.uuid4().hex,
        "fingerprint": environment.fingerprint(facts, device=config.get("device", "cpu"), threads=threads),
        "task_version": load.common(config["task"]["module"]).VERSION,
        "environment": facts | {"threads": threads},
        "command": shlex.join(["suite", *command]),
    }


def prepare_backend(config: Mapping[str, Any]) -> None:
    """Apply the process-wide settings that the framework reads at its first use."""
    if is_baseline(config):
        baseline.prepare(threads_for(config))
        return
    if config["backend"] == "torch":
        import torch

        torch.set_num_threads(threads_for(config))
        return
    flags = os.environ.get("XLA_FLAGS", "")
    local = config["world"] // processes(config)
    if local > 1 and config["device"] != "cuda" and "host_platform_device_count" not in flags:
        flags += f" --xla_force_host_platform_device_count={local}"
        # XLA's pool has one thread per core. Devices that wait for each other in a collective can occupy all threads
        # while a factorisation still needs one (jaxlib 0.10.2, two devices on two cores: 2 of 6 processes hung; with
        # 8 threads, 0 of 8)
        os.environ.setdefault("NPROC", str(4 * local))
    if config["deterministic"] and config["device"] != "cpu":
        flags += " --xla_gpu_deterministic_ops=true"
    os.environ["XLA_FLAGS"] = flags.strip()
    load.half("suite.engine", "jax").enable_cache()


@contextmanager
def _signals(*, patient: bool) -> Iterator[list[str]]:
    """Handle SIGINT and SIGTERM inside the context.

    Args:
        patient: collect the names of the signals, for a run that checks the list after each step; a second signal ends
            the process at once. If False, a signal raises KeyboardInterrupt with its name.

    Yields:
        The names of the signals received so far.
    """
    received: list[str] = []

    def handler(number: int, frame: Any) -> None:
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
