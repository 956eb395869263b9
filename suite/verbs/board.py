"""`suite board`: rebuild the leaderboard from result files."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from suite.board.groups import rank_results
from suite.board.news import list_additions
from suite.board.site.pages import render_pages
from suite.claims.standings import list_standings
from suite.contract import UserError
from suite.entries import intake
from suite.entries.doubts import list_doubts

STUDIES = "studies"  # the folder of values that `suite reproduce` measured
HELP = """Rebuild the leaderboard from result files, as a static site: index.html has the leaders, what is new and in
doubt, and the verdicts on claims, task/ has the pages of the tasks, leaderboard.json has all of it. Exit codes: 0
written (files that could not be read are left out and named), 2 bad usage."""


def main(arguments: Sequence[str]) -> int:
    """Build the leaderboard, and serve it if asked to."""
    parser = argparse.ArgumentParser(prog="suite board", description=HELP)
    parser.add_argument(
        "--out", type=Path, default=Path("site"), metavar="DIR", help="the folder to write to (default: site)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folders with results (default: results/runs, or the suite's own outside a checkout, and runs)",
    )
    parser.add_argument(
        "--without-claims",
        action="store_true",
        help="leave out the claims; finding what is known about them takes time",
    )
    parser.add_argument(
        "--serve",
        type=int,
        nargs="?",
        const=8000,
        metavar="PORT",
        help="then serve the site at http://127.0.0.1:PORT (default: 8000)",
    )
    chosen = parser.parse_args(arguments)
    folders = chosen.results or _usual_folders()
    if absent := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UserError(f"no such folder: {', '.join(absent)}; name folders with results: suite board --results DIR …")
    files = _files(folders)
    print(f"reading {len(files):,} files", file=sys.stderr, flush=True)
    results, left_out = intake.read_results(files)
    for line in left_out:
        print(f"left out {line}", file=sys.stderr)
    leaderboard = rank_results(results, unreadable=left_out, doubts=list_doubts())
    if not chosen.without_claims:
        print("judging the claims; --without-claims leaves them out", file=sys.stderr, flush=True)
    standings = [] if chosen.without_claims else list_standings()
    pages = render_pages(leaderboard, standings, chosen.out, list_additions(folders))
    named = f", {len(left_out)} files left out" if left_out else ""
    print(
        f"{chosen.out / 'index.html'}: {len(pages)} pages, {len(leaderboard.groups)} groups "
        f"from {len(leaderboard.results)} results{named}"
    )
    if chosen.serve is not None:
        with _server(chosen.out, chosen.serve) as server:
            print(f"http://127.0.0.1:{server.server_port}/ (press Ctrl-C to stop)", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print()
    return 0


def _usual_folders() -> list[Path]:
    """List the folders: this checkout's committed results, or outside of one the suite's; and this directory's runs."""
    committed, own = Path("results/runs"), Path("runs")
    if not committed.is_dir():
        committed = _shipped()
        if committed.is_dir():
            print(f"no results/runs here; using the suite's own results: {committed}")
        else:
            print("no results/runs here, and this installation has no results; to add some, use --results DIR")
    return [folder for folder in (committed, own) if folder.is_dir()]


def _shipped() -> Path:
    """Return the results that come with the suite; an installation from a wheel has none."""
    return Path(str(resources.files("suite.results"))) / "runs"


def _files(folders: Iterable[Path]) -> list[Path]:
    """Return the JSON files of the folders that may be results."""
    return sorted(
        file
        for folder in folders
        for file in intake.find_files(folder)
        if STUDIES not in file.relative_to(folder).parts
    )


def _server(out: Path, port: int) -> ThreadingHTTPServer:
    return ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=str(out)))
