"""Error rates of `suite regress` on real processes of one machine.

`python tests/calibration processes --record idle --count 100` measures rounds of the benchmark sgd-torch with the same
code on both sides, and adds the seconds of a step to results/processes.csv; `--record busy` does so beside a second
process, which multiplies matrices; `--running` takes one that runs already. With `--alone`, the two processes of a
round run one after the other. `--benchmark sgd-jax` measures sgd-jax instead. It may be
interrupted and continued.

`python tests/calibration processes` replays comparisons from these records and writes the table of docs/regression.md.
A comparison takes the rounds in the order in which they ran, beginning at one of 100 places; B's seconds are multiplied
by the effect. Comparisons overlap, so that the shares are less certain than those of 100 separate ones.
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

from calibration.regressions import PAGE, update

from suite.regress.benchmarks import Benchmark, read_benchmarks
from suite.regress.rule import Verdict
from suite.regress.sample import LIMIT, Sampler, in_turns, list_cores
from suite.regress.session import Limits, Session
from suite.regress.sides import Side

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "processes.csv"
BEGIN = "<!-- table: processes -->\n"
BENCHMARKS = ("sgd-torch", "sgd-jax")
LOADS = {"idle": "nothing else", "busy": "a second process"}
DESIGNS = {"alone": "one after the other", "turns": "in turns"}
EFFECTS = (1.0, 1.03, 1.1)  # B over A
COMPARISONS = 100
Round = tuple[float, float]
BUSY = "import numpy as np\na = np.ones((500, 500))\nwhile True: a @ a"


@dataclass(frozen=True)
class Kind:
    """What rounds have in common.

    Attributes:
        benchmark: one of `BENCHMARKS`.
        load: key of `LOADS`.
        design: key of `DESIGNS`.
    """

    benchmark: str
    load: str
    design: str


@dataclass(frozen=True)
class Row:
    """How replayed comparisons end.

    Attributes:
        kind: of the rounds.
        effect: B's seconds over A's.
        states: number of comparisons by answer.
        rounds: median.
    """

    kind: Kind
    effect: float
    states: dict[str, int]
    rounds: float


# ------------------------------------------------------------------------------------------------------------ records
def record_rounds(kind: Kind, count: int, running: bool = False, path: Path = RECORDS) -> None:
    """Measure until there are `count` rounds of this kind.

    Args:
        kind: of the rounds.
        count: number of rounds.
        running: whether the second process of the load runs already.
        path: of the records.
    """
    benchmark = next(one for one in read_benchmarks() if one.name == kind.benchmark)
    side, choice = Side(".", Path(sys.executable), ROOT), list_cores(1)
    sampler = Sampler()
    with contextlib.nullcontext() if running or kind.load == "idle" else _second():
        if not path.exists():
            path.write_text("benchmark,load,design,first,second\n", encoding="utf-8")
        for number in range(len(read_rounds(kind, path)), count):
            core = choice[number % len(choice)]
            if kind.design == "turns":
                first, second = sampler([side, side], benchmark, core)
            else:
                [first], [second] = (in_turns([side], benchmark, core, LIMIT) for _ in range(2))
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{kind.benchmark},{kind.load},{kind.design},{first:.6g},{second:.6g}\n")


@contextlib.contextmanager
def _second() -> Iterator[None]:
    """Inside, a second process multiplies matrices."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def read_rounds(kind: Kind, path: Path = RECORDS) -> list[Round]:
    """The recorded rounds, in order: seconds of a step of both processes."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if Kind(row["benchmark"], row["load"], row["design"]) == kind]
    return [(float(row["first"]), float(row["second"])) for row in rows]


def spread(rounds: Sequence[Round]) -> float:
    """Standard deviation of the logarithm of the ratio of a round, estimated from quartiles."""
    low, _, high = statistics.quantiles([math.log(second / first) for first, second in rounds], n=4)
    return (high - low) / 1.349


# ------------------------------------------------------------------------------------------------------------ replays
def replay_comparisons(kind: Kind, rounds: Sequence[Round], effect: float) -> Row:
    """Compare a side with itself, many times.

    Args:
        kind: of the records.
        rounds: the records, in order.
        effect: by which B's seconds are multiplied.
    """
    states, used = [], []
    for number in range(COMPARISONS):
        start = number * len(rounds) // COMPARISONS
        verdict = _compare(kind.benchmark, [*rounds[start:], *rounds[:start]], effect, number)
        states.append(verdict.state)
        used.append(verdict.rounds)
    counts = {state: states.count(state) for state in ("slower", "not slower", "undecided")}
    return Row(kind, effect, counts, statistics.median(used))


def _compare(benchmark: str, rounds: Sequence[Round], effect: float, seed: int) -> Verdict:
    """The answer of one comparison."""
    a, b = (Side(name, Path("python"), Path()) for name in "AB")
    following = itertools.cycle(rounds)

    def take(sides: Sequence[Side], *_: object) -> list[float]:
        return [seconds * (effect if side is b else 1.0) for side, seconds in zip(sides, next(following), strict=True)]

    limits = Limits()
    [outcome] = Session((a, b), [Benchmark(benchmark, ())], limits, measure=take, seed=seed).run()
    verdict = outcome.verdict(limits, 1)
    assert verdict is not None
    return verdict


def rows(path: Path = RECORDS) -> list[Row]:
    """The replays of all records."""
    kinds = [Kind(benchmark, load, design) for benchmark in BENCHMARKS for design in DESIGNS for load in LOADS]
    return [
        replay_comparisons(kind, rounds, effect)
        for kind in kinds
        if (rounds := read_rounds(kind, path))
        for effect in EFFECTS
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table for the page."""
    heads = " | ".join(f"B / A {effect:g}: slower, not slower (rounds)" for effect in EFFECTS)
    lines = [f"| benchmark | processes of a round | beside | rounds | spread of a ratio | {heads} |", "|" + "---|" * 8]
    for kind, mine in itertools.groupby(rows, lambda row: row.kind):
        cells = [f"{row.states['slower']}, {row.states['not slower']} ({row.rounds:g})" for row in mine]
        rounds = read_rounds(kind)
        shown = [kind.benchmark, DESIGNS[kind.design], LOADS[kind.load], str(len(rounds))]
        shown += [f"{100 * spread(rounds):.1f} %", *cells]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, or replay and write the table."""
    parser = argparse.ArgumentParser(prog="python tests/calibration processes", description=__doc__)
    parser.add_argument("--record", choices=LOADS)
    parser.add_argument("--benchmark", choices=BENCHMARKS, default=BENCHMARKS[0], help="default: %(default)s")
    parser.add_argument("--count", type=int, default=100, help="rounds of a kind; default: %(default)s")
    parser.add_argument("--running", action="store_true", help="the second process runs already")
    parser.add_argument("--alone", action="store_true", help="the processes of a round run one after the other")
    chosen = parser.parse_args(arguments)
    if chosen.record:
        design = "alone" if chosen.alone else "turns"
        record_rounds(Kind(chosen.benchmark, chosen.record, design), chosen.count, chosen.running)
        return 0
    update(PAGE, BEGIN, markdown(rows()))
    return 0
