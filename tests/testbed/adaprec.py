"""Statements of AdaPrec's poster (rows F1-04 to F1-06) over a slow link.

python tests/testbed/adaprec.py [BACKEND] [RATE] [SEED ...]: trains CaffeNet's stand-in on two hosts to its last target
in each mode, one after another, and prints what the runs say of each statement. A run that lies below RUNS already is
not made again, so that the same command goes on where it was interrupted; results are copied into RESULTS. The table
beside those has a row for each: steps and seconds of training to the last target, how many of these were trials, and in
which mode how many steps travelled.
"""

import csv
import json
import shutil
import statistics
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

from suite.contract import UserError
from testbed import Testbed, rendezvous

RUNS, RESULTS = Path("runs/adaprec"), Path("results/adaprec")
MODES = ("float32", "fp8", "table1", "layerwise", "fastest", "adaprec")  # the poster calls layerwise "fastest"
COMMON = ["+task=caffenet", "world=2", "threads=1", "track=none"]
DEADLINE = 3000.0  # seconds of one run
Rows = list[dict[str, str]]


def train(rate: str, backend: str, mode: str, seed: str) -> None:
    """One run over two hosts, unless it is there; its result, kept."""
    name = f"{rate}-{backend}-{mode}-s{seed}"
    folder = RUNS / name
    if not (folder / "result.json").exists():
        print(f"{folder} …", flush=True)
        _train(rate, backend, mode, seed, folder)
    shutil.copy(folder / "result.json", RESULTS / f"{name}.json")


def _train(rate: str, backend: str, mode: str, seed: str, folder: Path) -> None:
    launch = "launch=torchrun" if backend == "torch" else "launch=jax"
    words = [*COMMON, f"backend={backend}", launch, f"comm={mode}", f"seed={seed}", f"run_dir={folder}"]
    with Testbed(2, rate) as bed:
        each = [rendezvous(rank, 2, 2, bed.addresses[0]) for rank in range(2)]
        bed.run([(host, [sys.executable, "-m", "suite", *words]) for host in range(2)], deadline=DEADLINE, each=each)


def row(path: Path) -> dict[str, str]:
    """A result's line of the table."""
    result, rate = json.loads(path.read_text()), path.name.partition("-")[0]
    spec, last = result["spec"], result["targets"][-1]
    used: Counter[str] = Counter()
    for decision in result.get("decisions", ()):
        mode = decision["mode"]
        name = mode if isinstance(mode, str) else " ".join(f"{kind}={each}" for kind, each in mode.items())
        rest = result["steps"] - decision["step"]  # a run may reach its target before the next decision
        used[name] += rest if decision["steps"] is None else min(rest, decision["steps"])
    return {
        "rate": rate,
        "backend": spec["backend"],
        "mode": spec["comm"],
        "seed": str(spec["seed"]),
        "steps": str(last["step"] or "-"),
        "seconds": f"{last['train_seconds']:.0f}" if last["reached"] else "-",
        "trials": f"{sum(decision['seconds'] for decision in result.get('decisions', ())):.0f}",
        "best": f"{max(point['metrics'][last['metric']] for point in result['curve']):.2f}",
        "step_ms": f"{1000 * result['step_seconds']['p50']:.0f}",
        "megabytes": f"{result['bytes']['sent'] / 1e6:.0f}",
        "used": "; ".join(f"{name}: {steps}" for name, steps in used.items()),
    }


def rows(folder: Path = RESULTS) -> Rows:
    """A line for each result there."""
    return [row(path) for path in sorted(folder.glob("*.json"))]


def table(found: Rows) -> str:
    """Them as CSV."""
    file = StringIO()
    writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return file.getvalue()


def statements(found: Rows) -> str:
    """Return what the poster says, beside what the runs say: medians over seeds, `inf` where most missed the target."""

    def median(mode: str, what: str) -> float:
        return statistics.median(float(row[what].replace("-", "inf")) for row in found if row["mode"] == mode)

    steps: Counter[str] = Counter()
    for part in (part for row in found if row["mode"] == "adaprec" and row["used"] for part in row["used"].split("; ")):
        name, _, count = part.rpartition(": ")
        steps[name] += int(count)
    seconds = ", ".join(f"{mode} {median(mode, 'seconds'):.0f}" for mode in MODES)
    seconds += f", of which its trials {median('adaprec', 'trials'):.0f}"
    needed = ", ".join(f"{mode} {median(mode, 'steps'):.0f}" for mode in ("adaprec", "float32"))
    return (
        f"F1-04, as fast as a single low precision: seconds to the target {seconds}\n"
        f"F1-05, accuracy above float's at equal epochs: steps to the target {needed}\n"
        f"F1-06, table-1 excluded in most cases: {steps['table1']} of {sum(steps.values())} steps; {dict(steps)}"
    )


def main(backend: str = "torch", rate: str = "1gbit", *seeds: str) -> int:
    """Train what is missing, and write the table."""
    RESULTS.mkdir(exist_ok=True)
    for seed in seeds or ("0",):
        for mode in MODES:
            train(rate, backend, mode, seed)
    found = rows()
    RESULTS.with_suffix(".csv").write_text(table(found))
    print(statements([row for row in found if (row["rate"], row["backend"]) == (rate, backend)]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except UserError as error:
        sys.exit(f"suite: {error}")
