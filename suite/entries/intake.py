"""Reads result files for the leaderboard and for claims, and says of each other file why it is left out.

Result files may come from anywhere. A file counts only if it follows the types and ranges of `suite.record.result`, and
its configuration is that of a run.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from suite.contract import UserError
from suite.entries import strict
from suite.record import record
from suite.record.record import SCHEMAS
from suite.record.result import Result, list_violations

HEADER = "header.json"  # a run's metadata
CHECKPOINT = "checkpoint"  # a folder of a run
DEEPEST = 20  # of nested settings; the suite's own configurations have 6 levels


def read_results(files: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """Read the results among JSON files.

    Args:
        files: the files, in any order.

    Returns:
        The results, and for each other file a line that says why it is left out.
    """
    results, left_out = [], []
    for file in files:
        try:
            results.append(parse_result(strict.read_bytes(file).decode("utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            left_out.append(f"{file.as_posix()}: not a result: {give_reason(error)}")
    return results, left_out


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files below a folder, apart from those that lie beside a run's result."""
    for file in folder.rglob("*.json"):
        if file.name != HEADER and file.parent.name != CHECKPOINT:
            yield file


def find_results(folder: Path) -> Iterator[tuple[Path, Result]]:
    """Yield the results of the run directories in a folder such as `runs`; other and damaged files are left out."""
    for path in sorted(folder.glob("*/*/result.json")):
        results, _ = read_results([path])
        yield from ((path, result) for result in results)


def parse_result(text: str) -> Result:
    """Return the result that a file contains; its configuration is that of a run.

    Raises:
        ValueError: if the text is no result.
        RecursionError: if the text is nested too deeply for a reader of JSON.
    """
    result = parse_form(text)
    check_run(result)
    return result


def check_run(result: Result) -> None:
    """Check that a result's configuration is that of a run; modules from outside the suite may be imported for it.

    Raises:
        ValueError: if it is not.
    """
    try:
        record.load_run(result)
    except UserError as error:
        raise ValueError(f"spec.config: {error}") from error


def parse_form(text: str) -> Result:
    """Return the result that a file contains; its configuration is not read.

    Raises:
        ValueError: if the text is no result.
        RecursionError: if the text is nested too deeply for a reader of JSON.
    """
    try:
        result = Result.model_validate_json(text)
    except ValidationError:
        _check_head(text)
        raise
    if "NaN" in text or "Infinity" in text:  # pydantic reads them as numbers
        _check_head(text)
    if _deeper(result.spec.config, DEEPEST):
        raise ValueError(f"spec.config: settings are nested more than {DEEPEST} levels deep")
    return result


def _check_head(text: str) -> None:
    """Check that a text is a JSON object with a number of a schema that is read.

    Raises:
        ValueError: if it is not.
        RecursionError: if the text is nested too deeply for a reader of JSON.
    """
    content = json.loads(text, parse_constant=_not_json)
    json.dumps(content, ensure_ascii=False).encode()  # raises where a text has half of a surrogate pair
    if not isinstance(content, dict):
        raise ValueError("the file does not contain an object")
    if "schema" not in content:
        raise ValueError("schema is missing")
    if content["schema"] not in SCHEMAS:
        raise ValueError(f"its schema is {str(content['schema'])[:40]}; this suite reads {SCHEMAS[-1]}")


def _deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested more than so many levels deep."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def give_reason(error: Exception) -> str:
    """Return why `parse_result` rejected a file, in a line."""
    if isinstance(error, ValidationError):
        return next(list_violations(error))
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error)[:300]
