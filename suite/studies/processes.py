"""Error rates of `suite regress` on real processes of one machine.

`python -m suite.studies.processes --record idle --count 400` runs one benchmark again and again, each time in a new
process, as the command does, and adds the seconds of a step to results/processes.csv; `--record busy` does so beside a
second process, which multiplies matrices; `--running` takes one that runs already. It may be interrupted and continued.

`python -m suite.studies.processes` replays comparisons from these records and writes the table of docs/regression.md. A
comparison takes the processes in the order in which they ran, beginning at one of 100 places; both sides are the same
code, and B's seconds are multiplied by the effect. Comparisons overlap, so that the shares are less certain than those
of 100 separate ones.
"""

import argparse
import contextlib
import csv
import itertools
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.regress.benchmarks import Benchmark, read
from suite.regress.sample import cores, measure
from suite.regress.session import Limits, Session
from suite.regress.sides import Side
from suite.studies.regressions import PAGE, update

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "processes.csv"
BEGIN = "<!-- table: processes -->\n"
BENCHMARK = "sgd-torch"
LOADS = {"idle": "nothing else", "busy": "a second process"}
EFFECTS = (1.0, 1.03, 1.1)  # B over A
COMPARISONS = 100
BUSY = "import numpy as np\na = np.ones((500, 500))\nwhile True: a @ a"


@dataclass(frozen=True)
class Row:
    """How replayed comparisons end.

    Attributes:
        load: key of `LOADS`.
        effect: B's seconds over A's.
        states: number of comparisons by answer.
        rounds: median.
    """

    load: str
    effect: float
    states: dict[str, int]
    rounds: float


# ------------------------------------------------------------------------------------------------------------ records
def record(load: str, count: int, running: bool = False, path: Path = RECORDS) -> None:
    """Run the benchmark until there are `count` records of this load; two processes in a row use the same core.

    Args:
        load: key of `LOADS`.
        count: number of records.
        running: whether the second process of the load runs already.
        path: of the records.
    """
    benchmark = next(one for one in read() if one.name == BENCHMARK)
    side, choice = Side(".", Path(sys.executable), ROOT), cores(1)
    with contextlib.nullcontext() if running or load == "idle" else _second():
        for number in range(len(records(load, path)) if path.exists() else 0, count):
            seconds = measure(side, benchmark, choice[number // 2 % len(choice)])
            new = not path.exists()
            with path.open("a", encoding="utf-8") as file:
                file.write("load,seconds\n" * new + f"{load},{seconds:.6g}\n")


@contextlib.contextmanager
def _second() -> Iterator[None]:
    """Inside, a second process multiplies matrices."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def records(load: str, path: Path = RECORDS) -> list[float]:
    """The recorded seconds of a step, in the order of the processes."""
    with path.open(encoding="utf-8") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file) if row["load"] == load]


def spread(seconds: Sequence[float]) -> float:
    """Standard deviation of the logarithm of the ratio of two processes in a row, estimated from quartiles."""
    ratios = [math.log(b / a) for a, b in zip(seconds[::2], seconds[1::2], strict=False)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return (high - low) / 1.349


# ------------------------------------------------------------------------------------------------------------ replays
def replay(load: str, seconds: Sequence[float], effect: float) -> Row:
    """Compare a side with itself, many times.

    Args:
        load: of the records.
        seconds: of a step, one per process, in order.
        effect: by which B's seconds are multiplied.
    """
    states, rounds = [], []
    for number in range(COMPARISONS):
        start = number * (len(seconds) // 2) // COMPARISONS * 2  # rounds of two processes are kept together
        state, used = _compare([*seconds[start:], *seconds[:start]], effect, number)
        states.append(state)
        rounds.append(used)
    counts = {state: states.count(state) for state in ("slower", "not slower", "undecided")}
    return Row(load, effect, counts, statistics.median(rounds))


def _compare(seconds: Sequence[float], effect: float, seed: int) -> tuple[str, int]:
    """The answer of one comparison, and its rounds."""
    a, b = (Side(name, Path("python"), Path()) for name in "AB")
    values = itertools.cycle(seconds)

    def take(side: Side, benchmark: Benchmark, core: int | None) -> float:
        return next(values) * (effect if side is b else 1.0)

    limits = Limits()
    [outcome] = Session((a, b), [Benchmark(BENCHMARK, ())], limits, measure=take, seed=seed).run()
    verdict = outcome.verdict(limits, 1)
    assert verdict is not None
    return verdict.state, verdict.rounds


def markdown(rows: Sequence[Row]) -> str:
    """The table for the page."""
    heads = " | ".join(f"B / A {effect:g}: slower, not slower (rounds)" for effect in EFFECTS)
    lines = [f"| beside | processes | spread of a ratio | {heads} |", "|" + "---|" * (3 + len(EFFECTS))]
    for load, name in LOADS.items():
        seconds = records(load)
        cells = [
            f"{row.states['slower']}, {row.states['not slower']} ({row.rounds:g})" for row in rows if row.load == load
        ]
        lines.append(f"| {name} | {len(seconds)} | {100 * spread(seconds):.1f} % | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, or replay and write the table."""
    parser = argparse.ArgumentParser(prog="python -m suite.studies.processes", description=__doc__)
    parser.add_argument("--record", choices=LOADS)
    parser.add_argument("--count", type=int, default=400, help="records of a load; default: %(default)s")
    parser.add_argument("--running", action="store_true", help="the second process runs already")
    chosen = parser.parse_args(arguments)
    if chosen.record:
        record(chosen.record, chosen.count, chosen.running)
        return 0
    rows = [replay(load, records(load), effect) for load in LOADS for effect in EFFECTS]
    update(PAGE, BEGIN, markdown(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
