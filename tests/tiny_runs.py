"""Runs of the tiny task, which stands outside the tree: finished ones, and how far one has come."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import pytest

CONF = ("--config-dir", str(conftest.OUTSIDE / "conf"))
TINY = (*CONF, "+task=tiny", "track=none", "threads=1")
PATH = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
Call = Callable[..., tuple[int, str]]


def finished(folder: Path, *arguments: str) -> Path:
    """Make a run and return its directory."""
    from suite import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        patch.setenv("PYTHONPATH", PATH)
        patch.setenv("XLA_FLAGS", conftest.FLAGS)
        assert cli.main([*TINY, *arguments, f"run_dir={folder}"]) == 0
    return folder


def copied(run: Path, folder: Path, *, log: bool = True, **changes: Any) -> Path:
    """A run's result, with changed values at dotted keys, and its log."""
    result = json.loads((run / "result.json").read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        node: Any = result
        for part in path:
            node = node[int(part) if isinstance(node, list) else part]
        node[int(last) if isinstance(node, list) else last] = value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    if log:
        (folder / "events.jsonl").write_text((run / "events.jsonl").read_text())
    return folder / "result.json"


def curve(directory: Path) -> list[Any]:
    """Everything of a log that must be equal bit for bit: losses, hyper-parameters and metrics, not seconds."""
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    keys = ("step", "samples", "loss", "hyper", "metrics")
    return [[event.get(key) for key in keys] for event in events if event["event"] in ("step", "evaluated")]


def wait_for_step(process: "subprocess.Popen[str]", directory: Path, step: int) -> None:
    """Until the log of a run has a step."""
    log = directory / "events.jsonl"
    steps = lambda: sum('"event": "step"' in line for line in log.read_text().splitlines())  # noqa: E731
    _wait_until(lambda: log.exists() and steps() >= step, process, f"step {step}")


def wait_for_checkpoint(process: "subprocess.Popen[str]", directory: Path, step: int = 1) -> None:
    """Until a run has a checkpoint of a step or a later one."""
    from suite.training import checkpoint

    _wait_until(lambda: (checkpoint.find_latest(directory) or 0) >= step, process, f"a checkpoint of step {step}")


def _wait_until(ready: Callable[[], bool], process: "subprocess.Popen[str]", goal: str) -> None:
    until = time.monotonic() + 300  # on a busy machine, jax compiles for minutes
    while time.monotonic() < until and process.poll() is None:
        if ready():
            return
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"ended before {goal}: {process.communicate()[0]}")
