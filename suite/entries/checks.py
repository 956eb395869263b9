"""Checks results for everything that a sceptical reader would look for, as a list of findings.

    python -m suite.entries.checks results/runs

prints the findings, the worst first, and exits with 1 if a result is wrong.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from suite.contract import UserError
from suite.entries import check_result, check_set, submission
from suite.entries.finding import SEVERITIES, Entry, Finding, sort_findings
from suite.entries.strict import Unreadable, escape_text


def check_entries(entries: Sequence[Entry]) -> list[Finding]:
    """Everything that is found in a set of results, the worst first.

    Args:
        entries: results that follow the schema, with their logs where there are any.
    """
    alone = [finding for entry in entries for finding in check_result.check_result(entry)]
    return sort_findings([*alone, *check_set.check_set(entries)])


def check_paths(paths: Sequence[Path]) -> tuple[int, list[Finding]]:
    """Return the findings about the results that paths name.

    Args:
        paths: result files, run directories, or folders with either.

    Returns:
        The number of files, and the findings.

    Raises:
        UserError: if a path contains no result.
    """
    entries, unreadable, count = [], [], 0
    for path in paths:
        try:
            files = submission.list_files(path)
        except Unreadable as error:
            raise UserError(f"{path}: {error}") from error
        for file in files:
            count += 1
            checked = submission.check_form(file)  # check_entries compares the numbers
            if checked.entry is not None:
                entries.append(checked.entry)
            else:
                faults = (
                    "; ".join(checked.faults)
                    .replace(f"; {submission.REMEDY}", "")
                    .removeprefix("not a result of this suite ")
                )
                sentence = f"is not a result: {escape_text(faults)}"
                remedy = "leave it out, or submit the unchanged result of the run"
                unreadable.append(Finding("wrong", "form", (file.as_posix(),), sentence, remedy))
    return count, sort_findings([*unreadable, *check_entries(entries)])


def print_findings(findings: Sequence[Finding], count: int) -> int:
    """Print findings, and their numbers by check.

    Returns:
        1 if a result is wrong, else 0.
    """
    for finding in findings:
        print(finding)
    numbers = []
    for severity in SEVERITIES:
        checks = Counter(finding.check for finding in findings if finding.severity == severity)
        parts = ", ".join(f"{number} {check}" for check, number in checks.most_common())
        numbers.append(f"{checks.total()} {severity}" + (f" ({parts})" if parts else ""))
    print(f"{count} results: {', '.join(numbers)}")
    return 1 if any(finding.severity == "wrong" for finding in findings) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings about the named paths, or about results/runs."""
    words = sys.argv[1:] if arguments is None else arguments
    count, findings = check_paths([Path(word) for word in words] or [Path("results/runs")])
    return print_findings(findings, count)


if __name__ == "__main__":
    sys.exit(main())
