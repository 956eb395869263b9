"""`suite report`: one page about one or several runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from suite import disk
from suite.claims.standings import describe_bearing
from suite.contract import UserError
from suite.entries import submission
from suite.entries.strict import Unreadable
from suite.record import record
from suite.track import picture
from suite.track.run_report import TEMPLATES, Report, make_report, render_page

HELP = """Write one page about runs: targets, curves, published rows, the claims that they bear on, and the environment.
RUN is a run directory or a result.json; without its event log a page has no curves. Exit codes: 0 written, 2 bad
usage."""


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="suite report", description=HELP)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory, or its result.json")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="FILE.html or FILE.md (report.html)"
    )
    chosen = parser.parse_args(arguments)
    kind = chosen.out.suffix.removeprefix(".")
    if kind not in TEMPLATES:
        raise UserError(f"--out {chosen.out}: must end in .html or .md")
    text = render_page([_report(path) for path in chosen.runs], kind)
    disk.make_folder(chosen.out.parent)
    with disk.report_errors(chosen.out):
        chosen.out.write_text(text, encoding="utf-8", newline="\n")
    print(chosen.out)
    return 0


def _report(path: Path) -> Report:
    try:
        files = submission.list_files(path)
    except Unreadable as error:
        raise UserError(f"{path}: {error}") from error
    file = files[0]
    if len(files) > 1:
        raise UserError(f"{path}: contains {len(files)} results; name one of them, such as {file}")
    try:
        _, result = submission.read_submission(file)
    except Unreadable as error:
        raise UserError(f"{file}: {str(error).splitlines()[0]}") from error
    log = file.parent / submission.LOG
    try:
        events = record.read_events(log) if log.exists() and file.name == "result.json" else None
    except ValueError as error:
        raise UserError(f"{log}: damaged: {error}; for a page without curves, move the log away") from error
    curve = picture.draw_curve(result, events, title=record.method_of(result.spec)) if events else None
    return make_report(result, claims=describe_bearing(result), curve=curve)
