"""`suite verify`: recompute a result from its configuration and log, and repeat its first steps."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from suite import disk
from suite.contract import UserError
from suite.entries.recompute import list_contradictions, list_faults
from suite.launch.replay import list_modules, repeat_run
from suite.load import declares_settings
from suite.record import record
from suite.record.result import Result, list_violations
from suite.settings.run import AnyRun, read_run
from suite.training import weights

LISTED = 20  # differences that are printed
HELP = """Check a result.json in three parts. schema: its format. numbers: its hash, targets, quantiles and everything
else that can be recomputed from its configuration and curve, and from the events.jsonl beside it; the log against the
configuration; the result against the other files of its run directory. rerun: repeat its first steps and compare the
losses. They must be equal bit for bit if source, packages, processor, device and threads are the same; otherwise a
tolerance applies, which grows tenfold with each step. Modules from outside the suite are imported only with --trust.
Exit codes: 0 everything agrees, 1 something differs (it is named), 2 bad usage, or the steps cannot be repeated here.
"""


def main(arguments: Sequence[str]) -> int:
    """Check a result and print the outcome of each part."""
    parser = argparse.ArgumentParser(prog="suite verify", description=HELP)
    parser.add_argument("result", type=Path, metavar="RESULT", help="a result.json, or a run directory")
    parser.add_argument(
        "--steps", type=int, default=10, metavar="N", help="steps to repeat (default: 10; 0 repeats none)"
    )
    parser.add_argument(
        "--trust", action="store_true", help="import the modules from outside the suite that the result names"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the directory of its real data on this machine")
    chosen = parser.parse_args(arguments)
    chosen.result = chosen.result / "result.json" if chosen.result.is_dir() else chosen.result
    content = _read(chosen.result)
    try:
        result, faults = Result.model_validate_json(json.dumps(content)), []
    except ValidationError as error:
        result, faults = None, list(list_violations(error))
    if _report("schema", faults, f"agrees with version {record.SCHEMA}") or result is None:
        return 1
    named = list_modules(result.spec.config)
    foreign = [] if chosen.trust else [name for name in named if not name.startswith("suite.")]
    if declaring := [name for name in foreign if declares_settings(name)]:
        raise _distrusted(chosen.result, declaring, "which settings its hash covers is declared there")
    log = chosen.result.parent / "events.jsonl"
    advice = "to check the result without its log, move the log away"
    events = record.read_events(log, advice) if log.exists() else None
    try:
        faults = [*list_faults(result, events), *_list_other_differences(result, chosen.result.parent)]
    except (LookupError, TypeError, AttributeError) as error:
        faults = [f"{log}: not the log of a complete run ({type(error).__name__}: {error})"]
    except record.LogError as error:
        faults = [f"{log if events is not None else chosen.result}: {error}", *list_contradictions(result)]
    except UserError as error:  # its configuration is not that of a run
        faults = [str(error)]
    source = log if events is not None else "the result alone, because there is no events.jsonl beside it"
    code = _report("numbers", faults, f"agree, recomputed from {source}")
    if chosen.steps < 1:
        return code
    if foreign:
        raise _distrusted(chosen.result, foreign, "to check only the numbers, use --steps 0")
    run = _located(record.load_run(result), chosen.data_dir)
    faults, agreed = repeat_run(result, events, run, steps=chosen.steps)
    return max(code, _report("rerun", faults, agreed))


def _distrusted(path: Path, foreign: Sequence[str], further: str) -> UserError:
    names = ", ".join(foreign)
    return UserError(f"{path}: uses {names} from outside the suite; to import it, use --trust; {further}")


def _read(path: Path) -> Any:
    """Read a result file.

    Raises:
        UserError: if the file is not JSON, or not a result of this schema version.
    """
    result = disk.read_json(path)
    version = result.get("schema") if isinstance(result, dict) else None
    if version not in record.SCHEMAS:
        raise UserError(f"{path}: not a result of schema {record.SCHEMA} (its schema is {version})")
    return result


def _list_other_differences(result: Result, folder: Path) -> Iterator[str]:
    """One line for each difference from the other files of a run directory: header, configuration and weights."""
    if (path := folder / "header.json").exists():
        header = disk.read_json(path)
        recorded = result.plain()
        yield from (f"{name}: not as in {path.name}" for name in header if recorded.get(name) != header[name])
    if (path := folder / "config.yaml").exists() and disk.read_yaml(path) != result.spec.config:
        yield f"spec.config: not as in {path.name}"
    saved = result.weights
    if saved and (path := folder / weights.NAME).exists() and disk.hash_file(path) != saved.sha256:
        yield f"weights.sha256: not that of {path.name}"


def _report(part: str, faults: Sequence[str], agreed: str) -> int:
    """Print the outcome of one part of the check; return its exit code."""
    print(f"{part:8} {'differs:' if faults else agreed}", flush=True)
    for fault in faults[:LISTED]:
        print(f"  {fault}")
    if len(faults) > LISTED:
        print(f"  and {len(faults) - LISTED} more")
    return 1 if faults else 0


def _located(run: AnyRun, data_dir: str | None) -> AnyRun:
    """Return the run with the data directory of this machine, if one was given."""
    if data_dir is None:
        return run
    values = run.plain()
    values["data_dir"] = values["task"]["source"]["data_dir"] = data_dir
    return read_run(values)
