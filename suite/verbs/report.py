"""`suite report`: one page about one or several runs."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from suite.claims.standings import sentences
from suite.contract import UserError
from suite.record import record
from suite.report.run_report import TEMPLATES, Report, page, report
from suite.track import picture

HELP = """Write one page about runs: targets, curves, published rows, the claims that they bear on, and the environment.
RUN is a run directory or a result.json; without its event log a page has no curves. Exit codes: 0 written, 2 bad
usage."""


def main(arguments: Sequence[str]) -> int:
    """Write the page.

    Args:
        arguments: what was typed after `suite report`.

    Returns:
        0.

    Raises:
        UserError: if a path is not a finished run, or the file's ending is unknown.
    """
    parser = argparse.ArgumentParser(prog="suite report", description=HELP)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory, or its result.json")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="FILE.html or FILE.md (report.html)"
    )
    chosen = parser.parse_args(arguments)
    kind = chosen.out.suffix.removeprefix(".")
    if kind not in TEMPLATES:
        raise UserError(f"--out {chosen.out}: must end in .html or .md")
    text = page([_report(path) for path in chosen.runs], kind)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(text, encoding="utf-8", newline="\n")
    print(chosen.out)
    return 0


def _report(path: Path) -> Report:
    file = path / "result.json" if path.is_dir() else path
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        log = file.parent / "events.jsonl"
        events = record.read_events(log) if log.exists() and file.name == "result.json" else None
        curve = picture.curve(result, events, title=record.method(result["spec"]["config"])) if events else None
        return report(result, claims=sentences(result), curve=curve)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; name a finished run's directory or its result.json") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: not a result of this suite ({error!r})") from error
