"""Table of steps beside SGD's: python tests/bench/table.py BENCHMARKS.json TABLE.csv (`make steps` does both).

A row for each optimizer, model and backend: the step's time over SGD's where factors and inverses are refreshed every
1, 10 and 100 steps (`factors` says whether statistics are taken in every step or only in those); the 99th percentile of
steps that refresh, over SGD's median; bytes of state for each byte of the parameters, and most bytes held in a step
beside that, as SGD's own rows show for SGD. Rows that the run did not make again stay as they are.
"""

import csv
import json
import sys
from pathlib import Path

KEY = ("device", "backend", "model", "optimizer", "factors")
COLUMNS = (*KEY, "i1", "i10", "i100", "p99", "state", "peak", "commit")


def main(made: str, table: str) -> int:
    """Take a benchmark run into the table."""
    found, path = json.loads(Path(made).read_text()), Path(table)
    origin = {"device": found["machine_info"]["cpu"]["brand_raw"], "commit": found["commit_info"]["id"][:12]}
    rows = {}
    if path.exists():
        with path.open() as file:
            rows = {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}
    for each in found["benchmarks"]:
        for row in each["extra_info"].get("rows", ()):
            numbers = {name: f"{row[name]:.2f}" for name in ("i1", "i10", "i100", "p99", "state", "peak")}
            new = origin | {name: row[name] for name in ("backend", "model", "optimizer", "factors")} | numbers
            new["device"] = each["extra_info"].get("device", new["device"])
            rows[tuple(new[name] for name in KEY)] = new
    with path.open("w") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 3 else __doc__)
