"""Writes the first table of the README from the committed results: `python -m suite.board.readme`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from suite.board.contest import Competitor, Contest
from suite.board.groups import Leaderboard, rank_results
from suite.board.sections import Section, make_sections
from suite.board.site.text import MOST_NAMED, format_ratio, format_steps, has_few_seeds, join_names
from suite.contract import UserError
from suite.entries import intake

START, END = "<!-- results: python -m suite.board.readme -->", "<!-- end of results -->"
MOST_LINES = 9  # of the table; the README has at most 120 lines
HEADER = """| task, data | last target | steps to it, as a ratio to the first row's (95 % interval) | leads |
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
    """Return the table in Markdown: a line for each ladder that is not superseded.

    These are the registered ladders; where none is registered, the tuned ones of several optimizers.
    """
    present = [section for section in make_sections(leaderboard.groups) if not section.hardest.superseded_by]
    tuned = [(section, section.main) for section in present if section.hardest.tuned and section.main]
    registered = [(section, main) for section, main in tuned if main.looks]
    lines = [_line(section, main) for section, main in registered or tuned if main.optimizers > 1]
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


def _line(section: Section, main: Contest) -> str:
    rows: dict[str, Competitor] = {}
    for one in main.competitors:  # best first
        if one.kind != "no runs":
            rows.setdefault(one.optimizer, one)
    cells = []
    for one in rows.values():
        steps = " / ".join(format_steps(row) for row in one.rows)
        place = format_ratio(one.ratio) if one.ratio else f"{steps} ({len(one.rows[0].seeds)} seeds)"
        cells.append(f"{one.optimizer} {place if one.is_ranked else 'not ranked'}")
    task = f"`{section.hardest.task}`, {section.hardest.data['name']}"
    return f"| {' | '.join(map(_plain, (task, section.hardest.goal, ', '.join(cells), _leader(main))))} |"


def _leader(contest: Contest) -> str:
    """Return the optimizer that leads, or those that can."""
    if contest.leader:
        return f"**{contest.leader}**"
    if all(one.missed for one in contest.competitors):
        return "not reached"
    if has_few_seeds(contest):
        return "too few seeds"
    if len(contest.ranked) == 1:
        return f"only {contest.ranked[0].optimizer} is ranked"
    names = contest.possible_leaders
    if len(names) > MOST_NAMED:
        return f"any of {len(names)}"
    return join_names(names)


def _plain(text: str) -> str:
    """A text that keeps a Markdown table intact."""
    return " ".join(text.replace("|", "\\|").replace("<!--", "").split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
