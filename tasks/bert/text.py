"""Reads documents and sentences from text files, as a stream: WikiExtractor's output, WikiText, or plain text.

- WikiExtractor (`<doc id=… title=…>` to `</doc>`): each block is a document; its first line, the title, is removed.
- JSON lines (`WikiExtractor --json`): each line is an object, and its `text` a document, whose title is removed.
- WikiText: begins with a heading ` = Title = `. Each such heading begins a document; lower headings are removed.
- plain: blank lines separate documents.

The first line that is not blank tells the format; a line of another format below it is refused, because the first one
may be damaged. WikiText and plain text have no other redundancy: a document that is gone, or there twice, is seen by
the number of documents alone, which the manifest states for each file.

A line is a paragraph of one or more sentences. `.gz` and `.bz2` files are decompressed.
"""

import bz2
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.tasks._data import reject_copies
from suite.tasks._data.prepared import hash_file

PATTERNS = ("*.txt", "*.txt.gz", "*.txt.bz2", "wiki_*")
NOT_TEXT = ("vocab.txt",)
OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
BROKEN = (EOFError, OSError, zlib.error)  # what gzip and bz2 raise for a damaged stream
EXPECTED = "Expected WikiExtractor's files (AA/wiki_00, …) or *.txt, also .gz and .bz2, in any folder below it"
HEADING = re.compile(r"\s*= (?!=)(.*\S) =\s*")
SUBHEADING = re.compile(r"\s*= =.*= =\s*")
# A full stop, its closing quotes or brackets, then a space and the beginning of a sentence.
SENTENCE = re.compile(r"""(?<=[.!?])(["'”’)\]]*)\s+(?=["'“‘(\[]?\s?[A-Z0-9])""")
# A full stop that no space follows, as in Chinese and Japanese, and its closing quotes or brackets.
FULL_WIDTH = re.compile(r"""(?<=[。！？｡])([」』）】〉》”’]*)(?=[^」』）】〉》”’\s])""")

Document = list[str]


class Damaged(Exception):
    """A file that cannot be read to its end; the message names the file and the line."""


@dataclass(frozen=True)
class File:
    """A file that can be read: its path from the root, size in bytes, checksum and number of documents."""

    path: str
    bytes: int
    sha256: str
    documents: int


def find_files(root: Path) -> list[Path]:
    """Return the text files below a directory, sorted; or the file itself.

    Raises:
        UserError: if there are none, or one is there also compressed.
    """
    if root.is_file():
        return [root]
    matches = {path for pattern in PATTERNS for path in root.rglob(pattern) if path.is_file()}
    matches = {path for path in matches if path.name not in NOT_TEXT}
    if not matches:
        raise UserError(f"no text in {root}. {EXPECTED}. Type --from DIRECTORY")
    reject_copies(found := sorted(matches))
    return found


def survey_files(root: Path) -> tuple[list[File], list[str]]:
    """Read every file to its end; return the complete files, and one line for each damaged file."""
    whole, faults = [], []
    for path in find_files(root):
        name = str(path.relative_to(root)) if path != root else path.name
        try:
            count = sum(1 for _ in read_documents(path))
        except Damaged as error:
            faults.append(str(error))
            continue
        whole.append(File(name, path.stat().st_size, hash_file(path), count))
    return whole, faults


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, decoded one by one.

    Raises:
        Damaged: if it is not UTF-8, or its compressed stream is truncated or corrupt.
    """
    number = 0
    try:
        with OPEN.get(path.suffix, open)(path, "rb") as opened:
            for raw in opened:
                number += 1
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")  # without a byte-order mark
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        where = f"byte {byte:#04x} at {error.start + 1}"
        raise Damaged(f"{path}, line {number}: not UTF-8 ({where}); convert it, or leave the file out") from error
    except BROKEN as error:
        raise Damaged(f"{path}, after line {number}: {str(error) or type(error).__name__}") from error


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of one file as lists of sentences; empty documents are left out.

    Raises:
        Damaged: if the file cannot be read, a block of WikiExtractor is not closed, text is between blocks, a line
            of JSON has no text, an id is there twice, or a line belongs to another format than the first.
    """
    stream = read_lines(path)
    head: list[str] = []
    for line in stream:
        head.append(line)
        if line.strip():
            break
    first = head[-1] if head else ""
    rest = itertools.chain(head, stream)
    if first.startswith("<doc "):
        paragraphs = _blocks(path, rest)
    elif _is_json(first):
        paragraphs = _objects(path, rest)
    elif HEADING.fullmatch(first):
        paragraphs = _headed(_reject_markup(path, rest))
    else:
        paragraphs = _separated(_reject_markup(path, rest, headings=True))
    for document in paragraphs:
        if sentences := [sentence for paragraph in document for sentence in split_sentences(paragraph)]:
            yield sentences


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences by punctuation only; without a list of abbreviations, `Dr. Who` is split."""
    apart = FULL_WIDTH.sub("\\1\n", SENTENCE.sub("\\1\n", paragraph.strip()))
    return [sentence for sentence in apart.split("\n") if sentence.strip()]


def _blocks(path: Path, stream: Iterable[str]) -> Iterator[Document]:
    document: Document | None = None
    opened, number, title = 0, 0, ""
    first_lines: dict[str, int] = {}
    for number, line in enumerate(stream, start=1):
        if line.startswith("<doc "):
            if document is not None:
                raise Damaged(f"{path}, line {number}: a <doc …> begins before that of line {opened} has ended")
            document, opened = [], number
            title = _attribute(line, "title")
            _check_id(path, _attribute(line, "id"), number, first_lines)
        elif line.startswith("</doc>"):
            if document is None:
                raise Damaged(f"{path}, line {number}: </doc> without a <doc …>")
            yield _without(title, document)
            document = None
        elif line.strip():
            if document is None:
                raise Damaged(f"{path}, line {number}: this text is outside of <doc …> and </doc>")
            document.append(line)
    if document is not None:
        raise Damaged(f"{path}, line {opened}: this <doc …> is never closed; the file ends at line {number}")


def _check_id(path: Path, identity: str, number: int, first_lines: dict[str, int]) -> None:
    """Raise `Damaged` if the document of a line has the id of an earlier one."""
    if (first := first_lines.setdefault(identity, number)) != number and identity:
        raise Damaged(f"{path}, line {number}: the document with id {identity} is there twice, first in line {first}")


def _without(title: str, document: Document) -> Document:
    return document[1:] if document and document[0].strip() == title else document


def _is_json(line: str) -> bool:
    """Return whether a line is a JSON object."""
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; one that has a key twice is empty, because a reader would take the last."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else {}


def _objects(path: Path, stream: Iterable[str]) -> Iterator[Document]:
    first_lines: dict[str, int] = {}
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        entry = json.loads(line, object_pairs_hook=_read_pairs) if _is_json(line) else {}
        if not isinstance(entry.get("text"), str):
            raise Damaged(f"{path}, line {number}: not a JSON object with one text, unlike a file of JSON lines")
        _check_id(path, str(entry.get("id", "")), number, first_lines)
        yield _without(entry.get("title", ""), [part for part in entry["text"].split("\n") if part.strip()])


def _attribute(line: str, name: str) -> str:
    found = re.search(rf'{name}="([^"]*)"', line)
    return found[1] if found else ""


def _reject_markup(path: Path, stream: Iterable[str], *, headings: bool = False) -> Iterator[str]:
    """Yield the lines of a file that began as WikiText or plain text.

    Args:
        path: of the file, for messages.
        stream: its lines.
        headings: refuse headings of WikiText, too.

    Raises:
        Damaged: for a line of WikiExtractor's formats: its tags, or a JSON object with a text.
    """
    before = ""
    for number, line in enumerate(stream, start=1):
        kind = ""
        if line.startswith(("<doc id=", "</doc>")):
            kind = "WikiExtractor's documents"
        elif line.startswith('{"') and _is_json(line) and "text" in json.loads(line):
            kind = "JSON lines"
        elif headings and line.startswith(" = ") and not before.strip() and HEADING.fullmatch(line):
            kind = "WikiText"
        if kind:
            raise Damaged(f"{path}, line {number}: this line is one of {kind}, but the file does not begin as they do")
        before = line
        yield line


def _headed(stream: Iterable[str]) -> Iterator[Document]:
    """Documents of WikiText. A heading stands between blank lines, unlike formulas that the tokeniser has broken up."""
    document: Document = []
    around = itertools.chain([""], stream, [""])
    for before, line, after in _windows(around):
        apart = not before.strip() and not after.strip()
        if apart and HEADING.fullmatch(line):
            yield document
            document = []
        elif line.strip() and not (apart and SUBHEADING.fullmatch(line)):
            document.append(line)
    yield document


def _windows(stream: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Each item with its two neighbours."""
    items = iter(stream)
    before, item = next(items), next(items)
    for after in items:
        yield before, item, after
        before, item = item, after


def _separated(stream: Iterable[str]) -> Iterator[Document]:
    document: Document = []
    for line in stream:
        if line.strip():
            document.append(line)
        else:
            yield document
            document = []
    yield document
