"""A run directory in MLflow's terms: names, parameters and tags. This module does not import MLflow."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import disk
from suite.contract import Task, UserError
from suite.declared import Role
from suite.record import record
from suite.record.result import Result
from suite.settings.run import AnyRun, read_run

SUFFIXES = (".yaml", ".json", ".jsonl")  # of a run's files; locks and checkpoints are not sent
SPEC = ("task", "scale", "recipe", "optimizer", "baseline", "comm", "backend")  # keys of `spec` that become tags
CURVE, REPORT = "curve.svg", "report.html"  # files that MLflow has beside the run's own
DIGEST = "sha256/"  # prefix of tags that contain the sha256 of a file, which the rest of the tag names


@dataclass(frozen=True)
class View:
    """A snapshot of a run directory, finished or not.

    Attributes:
        folder: the snapshot's files.
        run: the run.
        result: the result, or what it would be if the run ended at the last event.
        events: the event log.
        alive: whether a process holds the directory's lock.
    """

    folder: Path
    run: AnyRun
    result: Result
    events: list[dict[str, Any]]
    alive: bool = False

    @property
    def finished(self) -> bool:
        """Return whether the run has a result, which is final."""
        return (self.folder / "result.json").exists()

    @property
    def status(self) -> str:
        """MLflow's word for the run's state."""
        if self.finished:
            return "FAILED" if self.result.outcome.kind in ("failed", "diverged") else "FINISHED"
        # A process that has just been interrupted may still hold the lock.
        return "RUNNING" if self.alive and not self.ended_itself else "KILLED"

    @property
    def ended_itself(self) -> bool:
        """Return whether the log's last event says how the run, or its last segment, ended."""
        return self.events[-1]["event"] == "finished"

    @property
    def experiment(self) -> str:
        """Name of the experiment, which contains the runs of one task, scale and data."""
        return experiment_name(self.run, self.result.data.name)

    @property
    def name(self) -> str:
        """Optimizer, communication, backend and seed, such as kfac·float32·torch·s0, or trees (baseline)·s0."""
        spec = self.result.spec
        parts = (self.run.method, spec.comm, spec.backend, f"s{spec.seed}")
        return "·".join(filter(None, parts))

    @property
    def began(self) -> int:
        """Start in milliseconds since 1970."""
        return _changed(self.folder / "header.json")

    @property
    def ended(self) -> int:
        """Time of the last event in milliseconds since 1970."""
        return _changed(self.folder / "events.jsonl")

    def parameters(self) -> dict[str, str]:
        """Return the settings by dotted key, such as `optimizer.lr`, with values as text; places are not among them."""
        roles: tuple[Role, ...] = ("setting", "replicate", "provenance")
        return {leaf.key: _text(leaf.value) for leaf in self.run.leaves() if leaf.effects.role in roles}

    def digests(self) -> dict[str, str]:
        """Return the sha256 of every file, by tag."""
        return hash_files(self.folder)

    def tags(self) -> dict[str, str]:
        """Return the tags by which runs can be searched and compared."""
        result, environment = self.result, self.result.environment
        outcome = result.outcome.kind if self.ended_itself else self.status.lower()
        values = {
            "execution_id": result.execution_id,
            "hash": result.hash,
            "published": "false",
            **{name: getattr(result.spec, name) for name in SPEC},
            "device": result.segments[-1].device,
            "data": result.data.label,
            "outcome": outcome,
            "busy_pauses": result.busy_pauses or None,  # training seconds are too low
            "suite": environment.suite,
            "commit": environment.commit,
            "dirty": environment.dirty,
            "mlflow.source.name": result.command,
            "mlflow.source.git.commit": environment.commit,
        }
        return {name: _text(value) for name, value in values.items() if value is not None}


def experiment_name(run: AnyRun, data: str) -> str:
    """Return the name of an experiment: `<task>/<scale>/<data>`."""
    return f"{run.task.name}/{run.scale}/{data}"


def task_of(run: AnyRun) -> Task:
    """Make the task of a run; an unfinished run needs its data and targets."""
    task: Task = run.task.build()
    return task


def hash_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of a run, by tag."""
    return {DIGEST + file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in list_files(folder)}


def list_files(folder: Path) -> list[Path]:
    """List the files of a run that are sent."""
    return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())


@contextmanager
def view_run(directory: Path) -> Iterator[View]:
    """Copy the files of a run directory, which a running process may change, and view the copies.

    Raises:
        UserError: if this is no run directory, or the run has not started training.
    """
    if not (directory / "header.json").exists():
        raise UserError(f"{directory}: not a run directory: header.json is missing")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in list_files(directory):
            shutil.copy2(file, folder)
        yield _read(folder, directory)


def _read(folder: Path, directory: Path) -> View:
    log, result = folder / "events.jsonl", folder / "result.json"
    events = record.read_events(log) if log.exists() else []
    if not events:
        raise UserError(f"{directory}: training has not started; there is nothing to send yet")
    try:
        run = read_run(disk.read_yaml(folder / "config.yaml"), old=True)
    except UserError as error:
        raise UserError(f"{directory}: its configuration cannot be read here: {error}") from error
    if result.exists():
        return View(folder, run, record.read_result(result), events)
    try:
        task = task_of(run)
    except (UserError, TypeError) as error:  # the data is gone, or the configuration is of an older version
        raise UserError(f"{directory}: the run is unfinished, and its task cannot be made here: {error}") from error
    header = record.read_header(folder)
    partial = record.compute_entries(
        events, run=run, targets=task.targets, header=header, data=record.describe_data(task.data), published=()
    )
    return View(folder, run, record.make_result(partial), events, _alive(directory))


def _alive(directory: Path) -> bool:
    """Return whether another process holds the directory's lock."""
    import fcntl

    path = directory / "lock"
    if not path.exists():  # a copy of a run directory has no lock
        return False
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _changed(file: Path) -> int:
    return round(1000 * file.stat().st_mtime)
