"""Reads the doubts about results: `results/doubts/<name>.yaml`, one doubt in each. docs/entries.md explains the format.

A doubt stays visible, whatever its status: the board shows it beside the results that it is about. Everything in it is
text from outside. Programs that show it must escape it, and must not open its addresses.
"""

import datetime
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suite.entries import strict
from suite.entries.faults import first_fault, not_yaml
from suite.entries.intake import read_results
from suite.entries.strict import Unreadable, escape_text
from suite.load import from_yaml
from suite.record.result import Result

MOST_BYTES = 64 * 2**10
MOST_BRACKETS = 200  # PyYAML's time grows with the square of their depth
FILE = r"^[A-Za-z0-9][A-Za-z0-9_+.-]*\.json$"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
Sentence = Annotated[str, Field(min_length=10, max_length=1000)]
Word = Annotated[str, Field(min_length=1, max_length=100)]
File = Annotated[str, Field(pattern=FILE, max_length=255)]
Evidence = Annotated[str, Field(pattern=r"^(https?://\S+|[A-Za-z0-9][A-Za-z0-9_+.-]*\.json)$", max_length=500)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(_Strict):
    """Results with equal words; an absent word does not matter."""

    task: Word
    data: Word | None = None  # as in the results' file names, such as digits
    optimizer: Word | None = None
    comm: Word | None = None
    backend: Literal["torch", "jax"] | None = None

    def matches(self, result: Result) -> bool:
        """Return whether a result belongs to the row."""
        spec = result.spec
        data = spec.config["task"].get("data") or result.data.name
        wanted = self.task, self.data, self.optimizer, self.comm, self.backend
        own = spec.task, data, spec.optimizer, spec.comm, spec.backend
        return all(value is None or value == other for value, other in zip(wanted, own, strict=True))


class Doubt(_Strict):
    """One doubt about results."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]  # of its file
    who: Word
    date: datetime.date
    results: Annotated[tuple[File, ...], Field(max_length=1000)] = ()  # names of result files, without their folders
    row: Row | None = None
    finding: Sentence
    evidence: Annotated[tuple[Evidence, ...], Field(max_length=100)] = ()  # names of result files, or addresses
    status: Literal["open", "answered", "confirmed"]
    answer: Sentence | None = None

    @model_validator(mode="after")
    def _check(self) -> "Doubt":
        if bool(self.results) == (self.row is not None):
            raise ValueError("needs exactly one of results (names of result files) and row (task, optimizer, …)")
        if self.date > datetime.date.today() + datetime.timedelta(days=1):  # elsewhere, it may be tomorrow
            raise ValueError("the date is in the future")
        if (self.answer is None) != (self.status == "open"):
            raise ValueError("an open doubt has no answer; answered and confirmed ones have one")
        return self

    def concerns(self, result: Result) -> bool:
        """Return whether the doubt is about a result; a file's name ends with the hash of its configuration."""
        if self.row is not None:
            return self.row.matches(result)
        return any(re.search(rf"-{re.escape(result.hash)}(-x[0-9a-f]+)?\.json$", file) for file in self.results)


@cache
def list_doubts() -> list[Doubt]:
    """List the doubts that are committed, by name.

    Raises:
        Unreadable: if a file does not follow the format.
    """
    folder = Path(str(resources.files("suite.results"))) / "doubts"
    return [read_doubts(path)[1] for path in sorted(folder.glob("*.yaml"))]


def read_doubts(path: Path) -> tuple[bytes, Doubt]:
    """Read the bytes of a doubt's file, and the doubt.

    Raises:
        Unreadable: if the file does not follow the format.
    """
    content = strict.read_bytes(path, MOST_BYTES)
    if not NAME.fullmatch(path.stem) or path.suffix != ".yaml":
        raise Unreadable("must be named <name>.yaml; the name has small letters, digits and hyphens")
    return content, parse_doubts(content, path.stem)


def parse_doubts(content: bytes, name: str) -> Doubt:
    """Return the doubt in a file's content.

    Args:
        content: of the file.
        name: of the file, without its ending.

    Raises:
        Unreadable: with the place and the cause.
    """
    import yaml

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"byte {error.start}: is not UTF-8") from error
    if (count := text.count("[") + text.count("{")) > MOST_BRACKETS:
        raise Unreadable(f"contains {count:,} opening brackets; at most {MOST_BRACKETS} are read")
    try:
        if any(isinstance(token, yaml.AliasToken | yaml.AnchorToken) for token in yaml.scan(text)):
            raise Unreadable("contains an anchor or an alias (& or *); write the text out, in quotes")
        entries = from_yaml(text, bounded=True)
        if not isinstance(entries, dict) or "name" in entries:
            raise Unreadable(
                "must be a mapping of fields, such as who: A. Reader, without a field name: the name is the file's"
            )
        return Doubt.model_validate({**entries, "name": name})
    except ValidationError as error:
        raise Unreadable(escape_text(first_fault(error, Doubt, text, apart=["name"]))) from error
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(escape_text(not_yaml(error))) from error


def check_subject(doubt: Doubt, folder: Path) -> None:
    """Check that the results that a doubt is about, and those of its evidence, are in a folder of results.

    Raises:
        Unreadable: if one is not, or no result belongs to the doubt's row.
    """
    present = {path.name: path for path in sorted(folder.glob("*/*.json"))}
    named = [*doubt.results, *(item for item in doubt.evidence if not item.startswith(("http://", "https://")))]
    for file in named:
        if file not in present:
            raise Unreadable(f"{file}: no such result in {folder}; give a file's name without its folder")
    if doubt.row and not any(doubt.row.matches(result) for result in read_results(present.values())[0]):
        raise Unreadable(f"row: no result in {folder} belongs to it")
