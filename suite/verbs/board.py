"""`suite board`: rebuild the leaderboard from result files."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from suite.board import SCHEMA, Result, rank
from suite.contract import UserError
from suite.page import render

HEADER = "header.json"  # a run's notes to itself, beside its result
HELP = """Rebuild the leaderboard from result files: one page, index.html, and leaderboard.json beside it. Exit codes:
0, also where some files could not be read (they are named), 2 bad usage."""


def main(arguments: Sequence[str]) -> int:
    """0, also where some files could not be read (they are named)."""
    parser = argparse.ArgumentParser(prog="suite board", description=HELP)
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="where to write (site)")
    parser.add_argument(
        "--results", type=Path, nargs="+", metavar="DIR", help="where results lie (results/runs and runs, if there)"
    )
    parser.add_argument(
        "--serve", type=int, nargs="?", const=8000, metavar="PORT", help="then show it on http://127.0.0.1:PORT (8000)"
    )
    chosen = parser.parse_args(arguments)
    folders = chosen.results or [folder for folder in (Path("results/runs"), Path("runs")) if folder.is_dir()]
    if absent := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UserError(f"no such folder: {', '.join(absent)}. Name folders with results: suite board --results DIR …")
    results, unreadable = _collect(folders)
    for line in unreadable:
        print(f"left out {line}", file=sys.stderr)
    leaderboard = rank(results, unreadable=unreadable)
    render(leaderboard, chosen.out)
    left_out = f", {len(unreadable)} files left out" if unreadable else ""
    print(
        f"{chosen.out / 'index.html'}: {len(leaderboard.groups)} groups "
        f"from {len(leaderboard.results)} results{left_out}"
    )
    if chosen.serve is not None:
        with _server(chosen.out, chosen.serve) as server:
            print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print()
    return 0


def _collect(folders: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """Results under the folders, and what is wrong with the other JSON files."""
    results, unreadable = [], []
    for file in sorted(file for folder in folders for file in folder.rglob("*.json") if file.name != HEADER):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}, this suite reads {SCHEMA}")
            _ = [group.title for group in rank([content]).groups]  # whatever is missing shows here
        except KeyError as error:
            unreadable.append(f"{file.as_posix()}: no result, it lacks {error}")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            unreadable.append(f"{file.as_posix()}: no result ({error})")
        else:
            results.append(content)
    return results, unreadable


def _server(out: Path, port: int) -> ThreadingHTTPServer:
    return ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=str(out)))
