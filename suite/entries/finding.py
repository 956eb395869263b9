"""Findings of the checks, and the results that they look at."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from suite.record.result import Result

Severity = Literal["wrong", "doubtful", "note"]
SEVERITIES: tuple[Severity, ...] = ("wrong", "doubtful", "note")
NAMED = 3  # files that a line names


@dataclass(frozen=True)
class Finding:
    """One thing that a reader of results should know.

    Attributes:
        severity: `wrong`: the result contradicts itself or its log, and must not be ranked. `doubtful`: it may mislead,
            and somebody should look. `note`: what no check could see, or what a reader should know.
        check: the name of the check.
        files: the results that it is about.
        sentence: what was found.
        remedy: what to do.
    """

    severity: Severity
    check: str
    files: tuple[str, ...]
    sentence: str
    remedy: str

    def __str__(self) -> str:
        more = f" and {len(self.files) - NAMED} more" if len(self.files) > NAMED else ""
        return f"{self.severity:8} {', '.join(self.files[:NAMED])}{more}: {self.sentence}; {self.remedy}"


@dataclass(frozen=True)
class Entry:
    """A result with its log.

    Attributes:
        path: of the result.
        result: its content, which follows the schema.
        events: of the log beside it; None if there is none.
        log_digest: sha256 of the log; None if there is none.
    """

    path: Path
    result: Result
    events: list[dict[str, Any]] | None = None
    log_digest: str | None = None

    @property
    def file(self) -> str:
        """Path as text."""
        return self.path.as_posix()


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Findings with the worst first; the same findings give the same list."""
    return sorted(
        findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.check, finding.files, str(finding))
    )
