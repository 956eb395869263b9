"""`suite submit`: check results, and copy them into a folder of results; check a doubt, and add it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.contract import UserError
from suite.entries import accept, checks, doubts, submission
from suite.entries.accept import Copy
from suite.entries.finding import Entry
from suite.entries.strict import Unreadable, escape_text

RESULTS, DOUBTS = Path("results/runs"), Path("results/doubts")
HELP = """Check results and copy them to results/runs/<task>/ in a checkout. RESULT is a result.json, a run
directory, or a folder with either. Each result must follow the schema and agree with its own configuration, curve and
event log; the sha256 of the log goes into a file beside the copy. Nothing is written unless all results pass. A result
that is there already is not written again. --check only prints what is found. --doubt adds a doubt
about results. Exit codes: 0 all results pass, 1 something is wrong (it is named), 2 bad usage."""


def main(arguments: Sequence[str]) -> int:
    """Check results and doubts, and copy them."""
    parser = argparse.ArgumentParser(prog="suite submit", description=HELP)
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT")
    parser.add_argument("--to", type=Path, metavar="DIR", help=f"the folder of results (default: {RESULTS})")
    parser.add_argument("--partial", action="store_true", help="copy the results that pass, even if others do not")
    parser.add_argument("--check", action="store_true", help="print the findings only")
    parser.add_argument("--doubt", type=Path, metavar="FILE.yaml", help=f"a doubt to add to {DOUBTS}")
    chosen = parser.parse_args(arguments)
    if chosen.doubt is not None:
        if chosen.results or chosen.check or chosen.partial:
            raise UserError("a doubt is submitted alone: run suite submit --doubt FILE.yaml")
        return _submit_doubt(chosen.doubt, chosen.to or _in_checkout(DOUBTS))
    if not chosen.results:
        raise UserError("name a result.json, a run directory or a folder: run suite submit RESULT")
    if chosen.check:
        count, findings = checks.check_paths(chosen.results)
        return checks.print_findings(findings, count)
    return _submit(chosen.results, chosen.to or _in_checkout(RESULTS), partial=chosen.partial)


def _in_checkout(folder: Path) -> Path:
    """Return the default folder, if the working directory is a checkout."""
    if not folder.parent.is_dir():
        raise UserError(
            f"this directory is no checkout of the suite: it has no folder {folder.parent}; go to a checkout, or name "
            "--to DIR"
        )
    return folder


def _submit(paths: Sequence[Path], folder: Path, *, partial: bool) -> int:
    """Check the results that the paths name, and copy them into the folder."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--to {folder}: is a file, not a folder; use --to DIR")
    checked = [submission.check(file) for file in _files(paths)]
    passed = [(item.entry, item.content) for item in checked if item.entry is not None and not item.faults]
    existing = accept.find_accepted(folder)
    planned, already, refused = accept.find_copies(passed, folder, existing)
    faults = [(item.path, fault) for item in checked for fault in item.faults] + refused
    faults += _wrong(planned, [entry for entry, _ in passed], existing)
    for path, fault in faults:
        print(f"{escape_text(path)}: {fault}", file=sys.stderr)
    bad = {path for path, _ in faults}
    if faults and not partial:
        if len(checked) > 1:
            others = "; to copy the others, use --partial" if len(bad) < len(checked) else ""
            print(f"nothing was copied: {len(bad)} of {len(checked)} results do not pass{others}", file=sys.stderr)
        return 1
    copies = [copy for copy in planned if copy.source not in bad]
    accept.write_accepted(copies)
    for copy in copies:
        print(copy.target)
    for source, target in already:
        print(f"{escape_text(source)}: is already submitted, as {target}")
    return 1 if faults else 0


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the result files that the paths name, each once."""
    files: dict[Path, Path] = {}
    for path in paths:
        try:
            files |= {file.resolve(): file for file in submission.list_files(path)}
        except Unreadable as error:
            raise UserError(f"{path}: {error}") from error
    return list(files.values())


def _wrong(planned: Sequence[Copy], passed: Sequence[Entry], existing: Sequence[Entry]) -> list[tuple[Path, str]]:
    """Print the findings about the new results among those in the folder; return what is wrong."""
    new = {copy.source for copy in planned}
    entries = [entry for entry in passed if entry.path in new]
    tasks = {entry.result.spec.task for entry in entries}
    alike = (entry.path for entry in existing if entry.path.parent.name in tasks)
    others = [entry for entry in (submission.check_form(path).entry for path in alike) if entry is not None]
    wrong = []
    for finding in checks.check_entries([*entries, *others]):
        about = [path for path in new if path.as_posix() in finding.files]
        if finding.severity == "wrong":
            wrong += [(path, f"{finding.sentence}; {finding.remedy}") for path in about]
        elif finding.severity == "doubtful" and about:
            print(finding)
    return wrong


def _submit_doubt(path: Path, folder: Path) -> int:
    """Check a doubt, and add it to the folder of doubts."""
    try:
        text, doubt = doubts.read_doubts(path)
        doubts.check_subject(doubt, folder.parent / RESULTS.name)
    except Unreadable as error:
        print(f"{escape_text(path)}: {error}", file=sys.stderr)
        return 1
    target = folder / f"{doubt.name}.yaml"
    if target.exists():
        if target.read_bytes() == text:
            print(f"{escape_text(path)}: is already submitted, as {target}")
            return 0
        print(
            f"{escape_text(path)}: {target} exists with other content; edit that file, or rename yours", file=sys.stderr
        )
        return 1
    accept.write_accepted([Copy(path, target, text, None)])
    print(target)
    return 0
