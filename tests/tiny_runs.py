"""Finished runs of the tiny task, which stands outside the tree."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest

CONF = ("--config-dir", str(conftest.OUTSIDE / "conf"))
TINY = (*CONF, "+task=tiny", "track=none", "threads=1")
PATH = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
Call = Callable[..., tuple[int, str]]


def finished(folder: Path, *arguments: str) -> Path:
    """The directory of a run in a process of its own."""
    variables = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "suite", *TINY, *arguments, f"run_dir={folder}"]
    environment = variables | {"PYTHONPATH": PATH}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
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
