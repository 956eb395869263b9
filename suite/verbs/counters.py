"""`suite counters`: compare exact counts of short runs with the accepted ones."""

import argparse
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from suite.contract import UserError
from suite.counters import golden

FILE = "counters.yaml"
HELP = """Count what short runs do, and compare with the counts that a reviewer has accepted: FLOPs, bytes and kernels
of each compiled program, compilations, operators, copies to the host, bytes on the wire, of the state and at most,
losses of 12 steps, steps to targets, imported modules. The counts do not depend on the machine's speed or load. Exit
codes: 0 equal up to rounding, or accepted; 2 bad usage, or a run failed; 3 something changed."""


def main(arguments: Sequence[str]) -> int:
    """Count and compare."""
    chosen = make_parser().parse_args(arguments)
    path = chosen.file or Path(str(resources.files("suite.results"))) / FILE
    versions = golden.other_versions(path) if path.exists() else []
    if versions and chosen.accept and chosen.names:
        raise UserError(f"{path}: was made with other versions ({', '.join(versions)}); leave out the names")
    accepted, changed = {entry["name"]: entry for entry in golden.read_counters(path)}, False
    for before, after in golden.compare_counters(
        path, chosen.names, lambda line: print(line, file=sys.stderr, flush=True)
    ):
        name, kind, differing = before["name"], golden.judge_changes(before, after), golden.list_changes(before, after)
        for change in differing:
            print(f"{name}: {change}")
        if kind:
            print(f"{name}: losses: {kind}")
        elif not differing:
            print(f"{name}: unchanged")
        changed |= bool(differing) or kind in ("algorithm", "bug?")
        accepted[name] = after
    if versions:
        print(f"The accepted counts were made with other versions: {', '.join(versions)}.")
    if chosen.accept:
        golden.write_counters(path, list(accepted.values()))
        print(f"written to {path}")
        return 0
    if changed:
        own = f" --file {path}" if chosen.file else ""
        print(f"To accept the present counts, run suite counters{own} --accept {' '.join(chosen.names)}".rstrip())
    return 3 if changed else 0


def make_parser() -> argparse.ArgumentParser:
    """Return what the command accepts."""
    accepted = argparse.ArgumentParser(prog="suite counters", description=HELP)
    accepted.add_argument("names", nargs="*", metavar="NAME", help="only these entries")
    accepted.add_argument(
        "--file", type=Path, metavar="FILE", help="a list of your own; default: results/counters.yaml"
    )
    accepted.add_argument("--accept", action="store_true", help="write the present counts to the file")
    return accepted
