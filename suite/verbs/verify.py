"""`suite verify`: recompute everything a result says that can be recomputed, and make its first steps again."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite import record
from suite.contract import UserError
from suite.verbs.recompute import differences, inconsistent, recompute, schema_faults
from suite.verbs.rerun import modules, rerun

LISTED = 20  # differences printed
HELP = """Check a result.json against the schema; recompute its hash, its table of targets, its quantiles and all that
follows from its configuration and curve, and from the events.jsonl beside it; then make its first steps again and
compare their losses: bit for bit where source, packages, processor, device and threads are the same, otherwise within
a tolerance that grows tenfold a step. Modules that are not the suite's own are imported only with --trust. Exit codes:
0 all agrees, 1 something differs (each thing is named), 2 bad usage, or the steps cannot be made again here."""


def main(arguments: Sequence[str]) -> int:
    """0 agrees, 1 differs."""
    parser = argparse.ArgumentParser(prog="suite verify", description=HELP)
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="updates to make again (10); 0: none")
    parser.add_argument("--trust", action="store_true", help="import modules the result names from outside the suite")
    parser.add_argument("--data-dir", metavar="DIR", help="where its real data lies here")
    chosen = parser.parse_args(arguments)
    result = _read(chosen.result)
    if _said("schema", list(schema_faults(result)), f"agrees with version {record.SCHEMA}"):
        return 1
    log = chosen.result.parent / "events.jsonl"
    events = _events(log) if log.exists() else None
    try:
        wrong = [*differences(result, recompute(result, events)), *inconsistent(result)]
    except (KeyError, IndexError, TypeError) as error:
        wrong = [f"{log}: holds no whole run ({type(error).__name__}: {error})"]
    source = log if events is not None else "the result alone: no events.jsonl lies beside it"
    code = _said("numbers", wrong, f"agree, recomputed from {source}")
    if chosen.steps < 1:
        return code
    config = _located(result["spec"]["config"], chosen.data_dir)
    foreign = [name for name in modules(config) if not name.startswith("suite.")]
    if foreign and not chosen.trust:
        names = ", ".join(foreign)
        raise UserError(
            f"{chosen.result}: names {names}, not the suite's own; --trust imports it, --steps 0 does without"
        )
    faults, agreed = rerun(result, events, config, steps=chosen.steps)
    return max(code, _said("rerun", faults, agreed))


def _read(path: Path) -> Any:
    """The file's JSON.

    Raises:
        UserError: for a file that is none, or of another version.
    """
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read as JSON: {error}"
        raise UserError(f"{path}: {reason}") from error
    version = result.get("schema") if isinstance(result, dict) else None
    if version != record.SCHEMA:
        raise UserError(f"{path}: no result of schema {record.SCHEMA} (its schema is {version})")
    return result


def _events(log: Path) -> list[dict[str, Any]]:
    try:
        return record.read_events(log)
    except ValueError as error:
        raise UserError(f"{log}: damaged: {error}; move it away to check the result alone") from error


def _said(what: str, faults: Sequence[str], agreed: str) -> int:
    """Print one part's outcome; its exit code."""
    print(f"{what:8} {'differs:' if faults else agreed}", flush=True)
    for fault in faults[:LISTED]:
        print(f"  {fault}")
    if len(faults) > LISTED:
        print(f"  and {len(faults) - LISTED} more")
    return 1 if faults else 0


def _located(config: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """The configuration with its real data where it lies here."""
    if data_dir is None:
        return config
    task = config["task"]
    return {**config, "data_dir": data_dir, "task": {**task, "source": {**task["source"], "data_dir": data_dir}}}
