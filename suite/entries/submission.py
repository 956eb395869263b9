"""Checks results from outside and names the files that they become. Nothing here writes.

A result passes if the file is JSON without traps (`strict.py`), follows suite/schema/result.json, and agrees with what
`suite verify` computes again from its configuration and curve, and from the event log beside it.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from suite.contract import UserError
from suite.entries import strict
from suite.entries.command import list_missing_words
from suite.entries.finding import Entry
from suite.entries.intake import HEADER, check_run, find_files, give_reason, parse_form
from suite.entries.recompute import list_faults
from suite.entries.strict import LISTED, NotJson, Unreadable, escape_text
from suite.record import record
from suite.record.record import is_baseline
from suite.record.result import Result, list_violations

LOG = "events.jsonl"
MOST_LOG_BYTES = 256 * 2**20  # about a million steps
MOST_FILES = 10_000  # in one folder
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*")  # no separator, no leading or double dot
LONGEST_WORD = 48  # so that the whole name stays below 255 bytes, the limit of most file systems
PLAIN = "float32"  # the communication mode that a file's name does not mention
REMEDY = "name a finished run's directory or its result.json"


@dataclass(frozen=True)
class Checked:
    """A file that was checked.

    Attributes:
        path: the file.
        entry: the result; None if it cannot be read or does not follow the schema.
        content: the file's bytes.
        faults: one line for each thing that is wrong; none if the result passes.
    """

    path: Path
    entry: Entry | None
    content: bytes
    faults: tuple[str, ...]


def list_files(path: Path) -> list[Path]:
    """List the result files that a path names.

    Args:
        path: a file; a run directory; a folder with run directories; or a folder of result files, which is what a
            folder without any `result.json` is taken for.

    Raises:
        Unreadable: if there are none, or too many.
    """
    if not path.exists():
        raise Unreadable(f"no such file or folder; {REMEDY}")
    if not path.is_dir():
        return [path]
    own = path / "result.json"
    if own.exists():
        return [own]
    found = []
    for file in find_files(path):
        found.append(file)
        if len(found) > MOST_FILES:
            raise Unreadable(f"contains more than {MOST_FILES:,} result files; name smaller folders")
    runs = [file for file in found if file.name == own.name]
    if not found and (path / HEADER).exists():
        raise Unreadable("is a run that has not finished; run its command again to continue it, then name it again")
    if not found:
        raise Unreadable(f"contains no result.json; {REMEDY}")
    return sorted(runs or found)


def read_submission(path: Path) -> tuple[bytes, Result]:
    """Read the bytes of a file, and the result in it, whose configuration is that of a run.

    Raises:
        Unreadable: if it is no result of this version; one line for each fault.
    """
    content, result = read_form(path)
    try:
        check_run(result)
    except ValueError as error:
        raise Unreadable(escape_text(give_reason(error))) from error
    return content, result


def read_form(path: Path) -> tuple[bytes, Result]:
    """Read the bytes of a file, and the result in it; its configuration is not read.

    Raises:
        Unreadable: if it is no result of this version; one line for each fault.
    """
    content = strict.read_bytes(path)
    try:
        value = strict.parse_json(content)
    except NotJson as error:
        raise Unreadable(f"{error}; {REMEDY}") from error
    if not isinstance(value, dict) or "schema" not in value:
        raise Unreadable(f"not a result of this suite (the key schema is missing); {REMEDY}")
    version = value["schema"]
    if version not in record.SCHEMAS or isinstance(version, bool):
        raise Unreadable(
            f"schema: is {escape_text(version)}, but this version of the suite reads {record.SCHEMA}; use the version "
            "that "
            "wrote the file"
        )
    try:
        return content, parse_form(content.decode())
    except ValidationError as error:
        faults = [escape_text(fault) for fault in list_violations(error)]
        more = ["and further violations of the format"] if len(faults) > LISTED else []
        raise Unreadable("\n".join(faults[:LISTED] + more)) from error
    except ValueError as error:
        raise Unreadable(escape_text(error)) from error


def check(path: Path) -> Checked:
    """Check one result file, and the event log if it lies in a run directory."""
    checked = check_form(path)
    if checked.entry is None:
        return checked
    return replace(checked, faults=tuple(_number_faults(checked.entry)))


def check_form(path: Path) -> Checked:
    """Read one result file, and the event log if it lies in a run directory; the numbers are not compared."""
    content = b""
    try:
        content, result = read_submission(path)
        entry = _with_log(path, result)
    except Unreadable as error:
        return Checked(path, None, content, tuple(str(error).splitlines()))
    return Checked(path, entry, content, ())


def _with_log(path: Path, result: Result) -> Entry:
    places = (place for place in (path, path.resolve()) if place.name == "result.json")  # beside a link or its file
    log = next((place.parent / LOG for place in places if (place.parent / LOG).exists()), None)
    if log is None:
        return Entry(path, result)
    if log.is_dir():
        raise Unreadable(f"{LOG}: is a folder")
    content = strict.read_bytes(log, MOST_LOG_BYTES)
    lines = content.split(b"\n")[:-1]  # a crash may have cut off the last line
    if not lines:
        raise Unreadable(f"{LOG}: contains no events")
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = strict.parse_json(line)
        except Unreadable as error:
            raise Unreadable(f"{LOG}, line {number}: {error}") from error
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise Unreadable(f"{LOG}, line {number}: not an event")
        events.append(event)
    return Entry(path, result, events, hashlib.sha256(content).hexdigest())


def _number_faults(entry: Entry) -> Iterator[str]:
    """Differences from what `suite verify` computes again, and words that cannot be part of a file's name."""
    try:
        faults = [
            *list_faults(entry.result, entry.events),
            *(list_missing_words(entry.result) if entry.result.version == record.SCHEMA else ()),
        ]
        name_of(entry.result)
    except (UserError, Unreadable) as error:
        faults = [str(error)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        source = f"{LOG} is not the log of this run" if entry.events is not None else "a part is missing or misplaced"
        faults = [f"its numbers cannot be checked: {source} ({type(error).__name__}: {error})"]
    yield from (escape_text(fault) for fault in faults[:LISTED])
    if len(faults) > LISTED:
        yield f"and {len(faults) - LISTED} more differences"


def name_of(result: Result) -> Path:
    """Name a result's folder and file with checked words only: task/data-optimizer-backend-s0-hash.

    Args:
        result: contents of a result.json that follows the schema.

    Raises:
        Unreadable: if a word could leave the folder, or is too long.
    """
    spec, config = result.spec, result.spec.config
    data = config["task"].get("data") or result.data.name
    if is_baseline(spec):
        words = [("data", data), ("baseline", spec.baseline)]
    else:
        comm = spec.comm
        words = [("data", data), ("optimizer", spec.optimizer)]
        words += [("comm", comm)] if comm != PLAIN else []
        words += [("backend", spec.backend)]
    for place, word in [("task", spec.task), *words, ("hash", result.hash)]:
        if not isinstance(word, str) or len(word) > LONGEST_WORD or not WORD.fullmatch(word):
            raise Unreadable(
                f"{place}: {escape_text(word)!r} cannot be part of a file's name; use letters, digits and -_+."
            )
    stem = "-".join(word for _, word in words)
    return Path(spec.task) / f"{stem}-s{spec.seed}-{result.hash}.json"
