"""Whole-run snapshots: one safetensors file, replaced atomically.

It holds weights, optimizer, residuals, carry, data position, clock and the length of the event log.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import UserError

NAME = "checkpoint.safetensors"
SCHEMA = 1


def save(directory: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Path:
    """Write a snapshot, replacing the one before only when the new one is complete on disk.

    Raises:
        OSError: when the disk is full; the snapshot before is left as it was.
    """
    from safetensors.numpy import save_file

    path, partial = directory / NAME, directory / f"{NAME}.partial"
    try:
        # ascontiguousarray alone would make scalars one-dimensional
        rows = {name: np.ascontiguousarray(value).reshape(value.shape) for name, value in arrays.items()}
        save_file(rows, partial, metadata={"suite": json.dumps({"schema": SCHEMA, **meta})})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def step(directory: Path) -> int | None:
    """After which step a directory's snapshot was made; None where there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(directory / NAME, framework="numpy") as file:
            return json.loads(file.metadata()["suite"])["step"]
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError):
        return None


def load(directory: Path, config_hash: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The arrays and meta of a directory's snapshot; None where there is none.

    Raises:
        UserError: for a damaged file, another schema or another configuration.
    """
    path = directory / NAME
    if not path.exists():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            meta = json.loads(file.metadata()["suite"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error}); delete it to start the run again") from error
    if meta["schema"] != SCHEMA:
        raise UserError(
            f"{path}: checkpoint schema {meta['schema']}, this suite writes {SCHEMA}; delete it to start again"
        )
    if meta["config_hash"] != config_hash:
        raise UserError(
            f"{path}: checkpoint of another configuration ({meta['config_hash']}, not {config_hash}); "
            "choose another run_dir=, or delete it"
        )
    return arrays, meta
