"""`make mutants`: which tests notice each deliberate bug of the list.

Prints for each bug the cheapest tier that notices it: `quick` (`make quick`), `room` (the few files that belong to it),
and, with --everything and only for those that survive both, `test` (`make test`). What is known is kept in
.mutants.jsonl; interrupt and repeat the command as you like. The exit code is 1 if a bug survives all tiers.
"""

import argparse
import csv
import hashlib
import json
import queue
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checkout import Checkout, save_tree
from mutant import ROOT, Mutant, load_mutants
from tiers import TIME_LIMIT, arguments, run_tests

KNOWN = ROOT / ".mutants.jsonl"
SURVIVES = "survives"


class Ledger:
    """A record of mutants and tiers, in a file of JSON lines.

    Args:
        path: the file.
        tree: hash of the tree that is tested.
    """

    def __init__(self, path: Path, tree: str):
        self._path, self._tree, self._lock = path, tree, threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {(entry["key"], entry["tier"]): entry["noticed"] for entry in map(json.loads, lines)}

    def key(self, mutant: Mutant) -> str:
        """Return the name of a bug in this tree."""
        return hashlib.sha256(f"{self._tree} {mutant}".encode()).hexdigest()[:16]

    def look_up(self, mutant: Mutant, tier: str) -> tuple[bool, str | None]:
        """Return whether a tier has run, and the test that noticed."""
        key = self.key(mutant), tier
        return key in self._known, self._known.get(key)

    def add(self, mutant: Mutant, tier: str, noticed: str | None, seconds: float) -> None:
        """Append the outcome of a tier."""
        entry = {"mutant": mutant.name, "tier": tier, "noticed": noticed, "seconds": round(seconds, 1)}
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(entry | {"key": self.key(mutant)}) + "\n")


def measure(mutant: Mutant, tier: str, checkout: Checkout, seconds: float) -> str | None:
    """Run one tier on a bug; return the test that noticed.

    Raises:
        RuntimeError: the test fails without the bug, too.
    """
    path = checkout.folder / mutant.file
    sound, broken = path.read_text(), mutant.apply(checkout.folder)
    for selected in arguments(tier, mutant):
        try:
            path.write_text(broken)
            noticed = run_tests(checkout, selected, seconds)
        finally:
            path.write_text(sound)
        if not noticed:
            continue
        again = selected if noticed == TIME_LIMIT else [*selected, "--last-failed"]
        if run_tests(checkout, again, seconds):
            raise RuntimeError(f"{noticed}: without {mutant.name}, too")
        return noticed
    return None


def cheapest_tier(
    mutant: Mutant, tiers: list[str], ledger: Ledger, checkouts: "queue.SimpleQueue[Checkout]", seconds: float
) -> str:
    """Return the first tier that notices a bug, and print it."""
    checkout = checkouts.get()
    try:
        for tier in tiers:
            known, noticed = ledger.look_up(mutant, tier)
            if not known:
                began = time.monotonic()
                noticed = measure(mutant, tier, checkout, seconds)
                ledger.add(mutant, tier, noticed, time.monotonic() - began)
            if noticed:
                print(f"{mutant.name:32} {tier:8} {noticed}", flush=True)
                return tier
    except RuntimeError as error:
        print(f"{mutant.name:32} error    {error}", flush=True)
        return "error"
    finally:
        checkouts.put(checkout)
    print(f"{mutant.name:32} {SURVIVES} {mutant.breaks}", flush=True)
    return SURVIVES


def main() -> int:
    """Test the chosen mutants; return the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--list", action="store_true", help="print the list and end")
    parser.add_argument("--no-quick", action="store_true", help="skip the tier quick")
    parser.add_argument("-x", "--everything", action="store_true", help="run make test's tests on what survives")
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2), help="mutants at a time")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="of one tier; 10 times for test")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write mutants and tiers")
    options = parser.parse_args()
    mutants = [mutant for mutant in load_mutants() if not options.only or mutant.name in options.only]
    if unknown := set(options.only or ()) - {mutant.name for mutant in mutants}:
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}; see --list")
    try:
        for mutant in mutants:
            mutant.apply(ROOT)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:32} {mutant.file}: {mutant.breaks}")
        return 0
    tiers = ["quick"] * (not options.no_quick) + ["room"] + ["test"] * options.everything
    checkouts: queue.SimpleQueue[Checkout] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        commit, tree = save_tree(ROOT, Path(scratch))
        ledger = Ledger(KNOWN, tree)
        for number in range(options.processes):
            checkouts.put(Checkout(ROOT, commit, Path(scratch) / str(number)))
        limit = options.limit * (10 if options.everything else 1)
        with ThreadPoolExecutor(options.processes) as pool:
            found = list(pool.map(lambda mutant: cheapest_tier(mutant, tiers, ledger, checkouts, limit), mutants))
    counts = {tier: found.count(tier) for tier in (*tiers, SURVIVES, "error")}
    print(", ".join(f"{tier}: {number}" for tier, number in counts.items()), f"of {len(found)}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["mutant", "tier"])
            rows.writerows((mutant.name, tier) for mutant, tier in zip(mutants, found, strict=True))
    return int(counts[SURVIVES] + counts["error"] > 0)


if __name__ == "__main__":
    sys.exit(main())
