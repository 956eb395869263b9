"""Writes the first table of the README from the committed results: `python -m suite.board.readme`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from suite.board.groups import Leaderboard, rank_results
from suite.board.sections import Section, make_sections
from suite.board.site.text import format_median, format_number
from suite.contract import UserError
from suite.entries import intake

START, END = "<!-- results: python -m suite.board.readme -->", "<!-- end of results -->"
MOST_LINES = 9  # of the table; the README has at most 120 lines
HEADER = """| task, data | last target | median steps over seeds (n), fewest first | leader |
|---|---|---|---|"""


def main(arguments: Sequence[str]) -> int:
    """Write the table, or compare it.

    Args:
        arguments: what was typed after the module's name.

    Returns:
        0, or 1 if `--check` finds another table in the file.
    """
    parser = argparse.ArgumentParser(prog="python -m suite.board.readme", description=__doc__)
    parser.add_argument("--file", type=Path, default=Path("README.md"), help="the file (default: README.md)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table would change")
    chosen = parser.parse_args(arguments)
    old = chosen.file.read_text(encoding="utf-8")
    new = replace_table(old, make_table(rank_committed()))
    if chosen.check:
        return int(old != new)
    chosen.file.write_text(new, encoding="utf-8", newline="\n")
    return 0


def rank_committed() -> Leaderboard:
    """Return the leaderboard of the results that are committed with the suite."""
    folder = Path(str(resources.files("suite.results"))) / "runs"
    results, _ = intake.read_results(sorted(folder.rglob("*.json")))
    return rank_results(results)


def make_table(leaderboard: Leaderboard) -> str:
    """Return the table in Markdown: a line for each tuned ladder with the rows of its largest contest."""
    lines = [_line(section) for section in make_sections(leaderboard.groups) if section.hardest.tuned and section.main]
    if len(lines) > MOST_LINES:
        more = len(lines) - MOST_LINES + 1
        lines[MOST_LINES - 1 :] = [f"| {more} more ladders | `suite board` shows them | | |"]
    return "\n".join([HEADER, *lines])


def replace_table(text: str, table: str) -> str:
    """Return the text with another table between the markers.

    Raises:
        UserError: if the text lacks the markers.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise UserError(f"the file needs the lines {START} and {END}; the table goes between them")
    return f"{before}{START}\n{table}\n{END}{after}"


def _line(section: Section) -> str:
    group, contest = section.hardest, section.main[0]
    best = dict.fromkeys(row.optimizer for row in contest.rows if row.steps)
    cells = []
    for optimizer in best:
        own = (optimizer, contest.setting.backend)
        row = next(row for row in section.featured if (row.optimizer, row.backend) == own)
        if row.steps:
            cells.append(f"{optimizer} {format_median(row.steps)} ({row.steps.n})")
    steps = f"{', '.join(cells)}; {contest.setting.backend}" if cells else "no finished run"
    task = f"`{group.task}`, {group.data['name']}"
    return f"| {' | '.join(map(_plain, (task, group.goal, steps, _leader(section))))} |"


def _leader(section: Section) -> str:
    """Return the optimizer that leads, or how many cannot be told apart."""
    if section.leader:
        return f"**{section.leader}**"
    contest = section.main[0]
    if contest.optimizers == 1:
        return "one optimizer"
    if contest.rows[0].rank is None:
        return "not reached"
    if not contest.not_separated:
        return "not in every framework"
    return f"none: {format_number(len(contest.not_separated) + 1)} not separable"


def _plain(text: str) -> str:
    """A text that keeps a Markdown table intact."""
    return " ".join(text.replace("|", "\\|").replace("<!--", "").split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
