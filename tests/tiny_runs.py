"""Finished runs of the tiny task, which stands outside the tree."""

import json
import os
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
        patch.delenv("XLA_FLAGS", raising=False)
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
