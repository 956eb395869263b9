"""What a run directory says, in MLflow's words: names, parameters and tags. MLflow itself is not needed here."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import load, record
from suite.contract import Task, UserError

SUFFIXES = (".yaml", ".json", ".jsonl")  # of the files that are a run; locks and checkpoints are not
SPEC = ("task", "scale", "recipe", "optimizer", "baseline", "comm", "backend")  # tags of the same names
DIGEST = "sha256/"  # tags that begin so hold the sha256 of the artifact named by the rest


@dataclass(frozen=True)
class View:
    """A snapshot of a run directory, finished or not.

    Attributes:
        folder: the snapshot's files.
        config: the run's configuration.
        result: the result, or what it would be if the run ended at the last event.
        events: the event log.
        alive: whether a process is at work in the directory.
    """

    folder: Path
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    events: list[dict[str, Any]]
    alive: bool = False

    @property
    def finished(self) -> bool:
        """Whether there is a result, which never changes again."""
        return (self.folder / "result.json").exists()

    @property
    def status(self) -> str:
        """MLflow's word for the run's state."""
        if self.finished:
            return "FAILED" if self.result["outcome"]["kind"] == "failed" else "FINISHED"
        # The process that has just been interrupted still holds the lock.
        return "RUNNING" if self.alive and not self.ended_itself else "KILLED"

    @property
    def ended_itself(self) -> bool:
        """Whether the log says how the run, or its last segment, ended."""
        return self.events[-1]["event"] == "finished"

    @property
    def experiment(self) -> str:
        """Runs of one task, scale and data lie together."""
        return experiment_name(self.config, self.result["data"]["name"])

    @property
    def name(self) -> str:
        """Optimizer, communication, backend and seed, as in kfac·float32·torch·s0; or trees (baseline)·s0."""
        spec = self.result["spec"]
        parts = (record.method(self.config), spec["comm"], spec["backend"], f"s{spec['seed']}")
        return "·".join(filter(None, parts))

    @property
    def began(self) -> int:
        """Milliseconds since 1970."""
        return _changed(self.folder / "header.json")

    @property
    def ended(self) -> int:
        """Milliseconds since 1970, of the last event."""
        return _changed(self.folder / "events.jsonl")

    def parameters(self) -> dict[str, str]:
        """The configuration, flat: `optimizer.lr`, `task.batch_size`, … with values as they are typed."""
        return dict(_flat(self.config))

    def digests(self) -> dict[str, str]:
        """A tag for the sha256 of every file."""
        return digests(self.folder)

    def tags(self) -> dict[str, str]:
        """What runs are found and told apart by."""
        result, environment = self.result, self.result["environment"]
        outcome = result["outcome"]["kind"] if self.ended_itself else self.status.lower()
        values = {
            "execution_id": result["execution_id"],
            "hash": result["hash"],
            "published": "false",
            **{name: result["spec"].get(name) for name in SPEC},
            "device": result["segments"][-1]["device"],
            "data": result["data"]["label"],
            "outcome": outcome,
            "suite": environment["suite"],
            "commit": environment["commit"],
            "dirty": environment["dirty"],
            "mlflow.source.name": result["command"],
            "mlflow.source.git.commit": environment["commit"],
        }
        return {name: _text(value) for name, value in values.items() if value is not None}


def experiment_name(config: Mapping[str, Any], data: str) -> str:
    """`<task>/<scale>/<data>`."""
    return f"{config['task']['name']}/{config['scale']}/{data}"


def task_of(config: Mapping[str, Any]) -> Task:
    """The configuration's task, for what only an unfinished run's task knows: its data and its targets."""
    node = config["task"]
    return load.common(node["module"]).make(**load.arguments(node))


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a run, by tag."""
    return {DIGEST + file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files(folder)}


def files(folder: Path) -> list[Path]:
    """The files that are a run."""
    return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)


@contextmanager
def snapshot(directory: Path) -> Iterator[View]:
    """A view of copies of the directory's files, so that a run that goes on meanwhile cannot change them.

    Raises:
        UserError: this is no run directory, or no training has begun in it.
    """
    if not (directory / "header.json").exists():
        raise UserError(f"{directory}: no run directory, header.json is missing")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in files(directory):
            shutil.copy2(file, folder)
        yield _read(folder, directory)


def _read(folder: Path, directory: Path) -> View:
    import yaml

    log, result = folder / "events.jsonl", folder / "result.json"
    events = record.read_events(log) if log.exists() else []
    if not events:
        raise UserError(f"{directory}: training has not begun, there is nothing to send yet")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    if result.exists():
        return View(folder, config, json.loads(result.read_text()), events)
    try:
        task = task_of(config)
    except (UserError, TypeError) as error:  # no data here any more, or a configuration of an older version
        raise UserError(f"{directory}: unfinished, and its task cannot be made here: {error}") from error
    header = json.loads((folder / "header.json").read_text()) | {"data": record.data_record(task.data)}
    so_far = record.result(events, config=config, targets=task.targets, header=header, published=())
    return View(folder, config, so_far, events, _alive(directory))


def _alive(directory: Path) -> bool:
    """Whether another process holds the directory's lock."""
    import fcntl

    path = directory / "lock"
    if not path.exists():  # not in copies
        return False
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _changed(file: Path) -> int:
    return round(1000 * file.stat().st_mtime)
