"""One run, from its configuration to its result, on one rank."""

import errno
import json
import os
import shlex
import signal
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suite import backend, baseline, checkpoint, environment, load, record
from suite.contract import Event, Finished, Task, UserError
from suite.log import Log
from suite.track.console import Console
from suite.train import train

EXIT = {"reached": 0, "exhausted": 0, "diverged": 0, "failed": 1}
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}
MISSED = 3


def make_task(config: Mapping[str, Any]) -> Task:
    """The task of a configuration, checked against the number of devices.

    Raises:
        UserError: for missing data, or a batch that cannot be shared out.
    """
    node = config["task"]
    task: Task = load.made(load.common(node["module"]).make, node, "task")
    if "baseline" in config:
        return task
    needs = load.common(config["optimizer"]["module"]).NEEDS
    for asked in (backend.tables, backend.sparse):
        asked(task, needs, config["optimizer"])
    unit = config["world"] * config["accumulate"] * task.group
    if task.batch_size % unit:
        smaller = ", or a smaller task.bn_group" if "bn_group" in config["task"] else ""
        raise UserError(
            f"task.batch_size={task.batch_size}: not divisible by world × accumulate × samples that stay together = "
            f"{config['world']} × {config['accumulate']} × {task.group} = {unit}; try task.batch_size="
            f"{max(1, task.batch_size // unit) * unit}{smaller}"
        )
    if task.eval_batch_size % config["world"]:
        raise UserError(
            f"task.eval_batch_size={task.eval_batch_size}: not divisible by world={config['world']}; "
            f"try task.eval_batch_size={-(-task.eval_batch_size // config['world']) * config['world']}"
        )
    return task


def threads_for(config: Mapping[str, Any]) -> int:
    """Threads of one process: `threads=auto` shares the cores out among the processes."""
    if config["threads"] != "auto":
        return int(config["threads"])
    node = config.get("launch", {})
    if node.get("cpus"):  # of one process, as a scheduler has given them
        return int(node["cpus"])
    here = node.get("per_host") or processes(config)
    return max(1, len(os.sched_getaffinity(0)) // int(here))


def processes(config: Mapping[str, Any]) -> int:
    """Processes of one run: one a device in torch, one in all in jax unless `launch.processes` says otherwise."""
    if "baseline" in config:
        return 1
    asked = config["launch"]["processes"]
    return (config["world"] if config["backend"] == "torch" else 1) if asked == "auto" else int(asked)


def directory(config: Mapping[str, Any]) -> Path:
    """Where a run's first execution writes: `run_dir`, or `runs/<task>/<hash>`."""
    return Path(config["run_dir"] or Path("runs") / config["task"]["name"] / record.config_hash(config))


class Directory:
    """Where a run writes; a finished equal run is found again, an unfinished one goes on, nothing is overwritten.

    Attributes:
        path: `run_dir`, or `run_dir.2`, `run_dir.3`, … for further executions.
        state: `new`, `resumed` or `finished`.

    Raises:
        UserError: where a file is in the way, or a run of another configuration.
    """

    def __init__(self, config: Mapping[str, Any], fingerprint: str):
        name = record.config_hash(config)
        base = directory(config)
        standing = next(path for path in (base, *base.parents) if path.exists())
        if not standing.is_dir():
            raise UserError(f"{base}: {standing} is a file; choose another run_dir=")
        number = 1
        while True:
            self.path = base if number == 1 else base.with_name(f"{base.name}.{number}")
            self.state = self._state(name, fingerprint, force=config["force"])
            if self.state != "taken":
                return
            number += 1

    def _state(self, name: str, fingerprint: str, *, force: bool) -> str:
        header_path = self.path / "header.json"
        if not header_path.exists():
            return "new"
        header = json.loads(header_path.read_text())
        if header["hash"] != name:
            raise UserError(
                f"{self.path}: holds a run of another configuration ({header['hash']}); choose another run_dir="
            )
        same = header["fingerprint"] == fingerprint
        result = self.path / "result.json"
        if result.exists():
            usable = json.loads(result.read_text())["outcome"]["kind"] != "failed"
            return "finished" if same and usable and not force else "taken"
        return "resumed" if same else "taken"


def execute(config: dict[str, Any], task: Task, directory: Path, header: dict[str, Any], *, rank: int = 0) -> int:
    """Run to the end, or on from a checkpoint; returns the exit code.

    Every rank calls this; rank 0 writes and prints.

    Raises:
        Exception: what one of several processes failed with.
    """
    from suite import published

    writes = rank == 0
    console = Console(config, task) if writes else None
    if console:
        console.opening()
    prepare_backend(config)
    engine = None if "baseline" in config else load.half("suite.backend", config["backend"]).Engine(task, config)
    name = record.config_hash(config)
    restored = checkpoint.load(directory, name)
    log = Log(directory / "events.jsonl", restored[1]["log_bytes"] if restored else 0) if writes else None

    def save(step: int, state: dict[str, Any], snapshot: Any) -> str:
        arrays, skeleton = snapshot
        if not log:
            return ""
        meta = {"config_hash": name, "step": step, **state, "skeleton": skeleton, "log_bytes": log.size}
        return str(checkpoint.save(directory, arrays, meta))

    listeners: list[Callable[[Event], None]] = [listener for listener in (log, console) if listener]
    start = (
        ({n: restored[1][n] for n in ("step", "clock", "decisions")}, (restored[0], restored[1]["skeleton"]))
        if restored
        else None
    )
    last: Finished | None = None
    with _signals(patient=engine is not None) as asked:
        try:
            events = (
                train(task, engine, config, save=save, restored=start, stop=lambda: asked[0] if asked else None)
                if engine
                else baseline.measure(task, config)
            )
            for event in events:
                for listen in listeners:
                    listen(event)
                last = event if isinstance(event, Finished) else last
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(f"{directory}: the disk is full; make room and type the same command to go on") from error
        except UserError:
            raise
        except KeyboardInterrupt as signalled:
            print(f"interrupted ({signalled}): a baseline is not saved on its way; the same command fits it anew")
            return SIGNALS[str(signalled)]
        except Exception as error:
            if engine and processes(config) > 1:
                raise  # another rank may be the cause, so it is no outcome, and the checkpoint stays
            traceback.print_exc()
            if isinstance(error, backend.RanksDiffer):
                return EXIT["failed"]  # nor is this
            facts = (engine or baseline).facts()
            last = Finished(0, {"kind": "failed", "error": f"{type(error).__name__}: {error}"}, facts)
            for listen in listeners:
                listen(last)
    assert last is not None
    kind = last.outcome["kind"]
    if log:
        log.close()
    if kind == "interrupted":
        if console:
            console.interrupted(directory, last)
        return SIGNALS[last.outcome["signal"]]
    if not console:
        return EXIT[kind]
    rows = published.rows_for(config["task"]["name"])
    header |= {"data": record.data_record(task.data)}
    result = record.result(
        record.read_events(directory / "events.jsonl"),
        config=config,
        targets=task.targets,
        header=header,
        published=[row.id for row in rows],
    )
    record.write(directory / "result.json", result)
    (directory / checkpoint.NAME).unlink(missing_ok=True)
    console.closing(result, directory / "result.json", rows)
    return exit_code(config, result)


def exit_code(config: Mapping[str, Any], result: Mapping[str, Any]) -> int:
    """0, 1 or 3 for a finished run's result."""
    if config["require"] == "target" and not all(target["reached"] for target in result["targets"]):
        return MISSED
    return EXIT[result["outcome"]["kind"]]


def make_header(config: Mapping[str, Any], command: list[str]) -> dict[str, Any]:
    """What is known of an execution before it starts."""
    facts = environment.capture()
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
    """Process-wide settings that must precede the framework's first use."""
    if "baseline" in config:
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
        # XLA's pool has a thread a core; devices that wait for one another in a collective can take them all while a
        # factorisation still needs one (jaxlib 0.10.2, two devices on two cores: 2 of 6 processes hung; with 8
        # threads 0 of 8)
        os.environ.setdefault("NPROC", str(4 * local))
    if config["deterministic"] and config["device"] != "cpu":
        flags += " --xla_gpu_deterministic_ops=true"
    os.environ["XLA_FLAGS"] = flags.strip()
    load.half("suite.backend", "jax").enable_cache()


@contextmanager
def _signals(*, patient: bool) -> Iterator[list[str]]:
    """Collect the names of Ctrl-C and SIGTERM instead of dying from them; a second one ends the process at once.

    Where nobody would ask for what was collected (not `patient`), each is a KeyboardInterrupt with its name.
    """
    heard: list[str] = []

    def handler(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if not patient:
            raise KeyboardInterrupt(name)
        if heard:
            sys.exit(SIGNALS[name])
        heard.append(name)

    before = {name: signal.signal(signal.Signals[name], handler) for name in SIGNALS}
    try:
        yield heard
    finally:
        for name, old in before.items():
            signal.signal(signal.Signals[name], old)
