"""Reads JSON from outside: limited in size, depth, numbers and texts, and with the place of whatever is wrong.

The standard parser accepts NaN, Infinity, repeated keys (the last one counts) and numbers that become infinite. Other
programs read such a file differently, or not at all.
"""

import json
import math
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_BYTES = 8 * 2**20  # the largest committed result has 18 kB; a curve of 10,000 evaluations has about 2 MB
MOST_DEPTH = 32  # committed results have at most 7 levels
LARGEST = 2**63 - 1  # integers beyond it become floats, or errors, in most other readers of JSON
LONGEST = 100_000  # characters of one text
LISTED = 20  # faults that are reported for one file
SHOWN = 160  # characters of a text from outside that a message repeats
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)  # a text, which may be cut off, or a bracket

SURROGATE = re.compile("[\ud800-\udfff]")


class Unreadable(ValueError):
    """A file that is not JSON as this module accepts it; the message has the place and the cause."""


class NotJson(Unreadable):
    """A file that no reader of JSON accepts."""


@dataclass(frozen=True)
class _Fault:
    """Stands in the parsed value for something that JSON readers disagree about."""

    cause: str


def escape_text(value: object) -> str:
    """A value from outside as text for messages: printable characters only, and shortened.

    Args:
        value: anything; it may contain line ends, escape sequences of terminals, or megabytes of text.
    """
    text = str(value)
    head = text[: 2 * SHOWN]
    if head.isprintable():
        plain = head
    else:
        plain = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in head)
    return plain if len(text) <= SHOWN and len(plain) <= 2 * SHOWN else f"{plain[:SHOWN]}…"


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read the content of a regular file.

    Args:
        path: the file.
        most: the largest accepted size in bytes.

    Raises:
        Unreadable: if it is no regular file, cannot be read, or is too large.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("is not a regular file; name a result.json or the directory of a run")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except Unreadable:
        raise
    except FileNotFoundError as error:
        raise Unreadable("no such file") from error
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {escape_text(error)}") from error
    if len(content) > most:
        raise Unreadable(f"is larger than {most:,} bytes, the limit")
    return content


def parse_json(content: bytes) -> Any:
    """Return the JSON value in a file's content.

    Raises:
        Unreadable: with one line for each fault.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start}: is not UTF-8, as JSON is") from error
    _check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=lambda name: _Fault(f"{name} is not JSON; leave the value out or write null"),
            parse_int=_integer,
            parse_float=_number,
        )
    except json.JSONDecodeError as error:
        raise NotJson(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    faults = []
    for fault in _faults(value):
        faults.append(fault)
        if len(faults) == LISTED:
            break
    if faults:
        raise Unreadable("\n".join(faults))
    return value


def _check_depth(text: str) -> None:
    """Reject deep nesting before the parser, which is recursive, sees it."""
    depth = 0
    for token in TOKEN.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
            if depth > MOST_DEPTH:
                line = text.count("\n", 0, token.start()) + 1
                column = token.start() - text.rfind("\n", 0, token.start())
                raise Unreadable(f"line {line}, column {column}: nested more than {MOST_DEPTH} levels deep")
        elif token[0] in ("]", "}"):
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> Any:
    entries = dict(pairs)
    if len(entries) == len(pairs):
        return entries
    seen: set[str] = set()
    repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
    return _Fault(f"the key {escape_text(repeated)!r} occurs more than once")


def _integer(digits: str) -> Any:
    if len(digits) > 20 or abs(int(digits)) > LARGEST:
        return _Fault(f"{escape_text(digits)} is beyond ±{LARGEST:,}, the limit for whole numbers")
    return int(digits)


def _number(digits: str) -> Any:
    number = float(digits)
    return number if math.isfinite(number) else _Fault(f"{escape_text(digits)} is too large for a number of 64 bits")


def _faults(value: Any, place: str = "") -> Iterator[str]:
    """One line for each fault in a parsed value, with its place as a dotted key."""
    here = place or "the file"
    if isinstance(value, _Fault):
        yield f"{here}: {value.cause}"
    elif isinstance(value, str):
        yield from (f"{here}: {cause}" for cause in _text_faults(value))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _faults(entry, f"{place}.{index}" if place else str(index))
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from (f"{here}: a key: {cause}" for cause in _text_faults(key))
            yield from _faults(entry, f"{place}.{escape_text(key)}" if place else escape_text(key))


def _text_faults(text: str) -> Iterator[str]:
    if len(text) > LONGEST:
        yield f"has {len(text):,} characters; the limit is {LONGEST:,}"
    if SURROGATE.search(text):
        yield "contains half of a surrogate pair, which is no character"
