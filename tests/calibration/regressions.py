"""`python tests/calibration regressions`: how often `suite regress` is wrong, and how many rounds it needs.

Simulates comparisons of two sides whose processes differ by a known factor, under several kinds of noise. The code that
decides is that of the command. Writes `results/regressions.csv` and the table of docs/regression.md; the same command
writes the same bytes.
"""

import argparse
import csv
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.regress.benchmarks import Benchmark
from suite.regress.session import Limits, Session
from suite.regress.sides import Side

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "results" / "regressions.csv"
PAGE = ROOT / "docs" / "regression.md"
BEGIN, END = "<!-- table: regressions -->\n", "<!-- end of table -->\n"
SIMULATIONS = 1000  # of each row: the standard error of a share of 1 % is 0.3 %
EFFECTS = (1.0, 1.03, 1.1)  # B over A
HEAD = ("noise", "effect", "slower", "not_slower", "undecided", "rounds_median", "rounds_95")
Draw = Callable[[np.random.Generator], Iterator[float]]


def _normal(spread: float) -> Draw:
    def draw(rng: np.random.Generator) -> Iterator[float]:
        while True:
            yield spread * rng.standard_normal()

    return draw


def _heavy(rng: np.random.Generator) -> Iterator[float]:
    """Student's t with 3 degrees of freedom, scaled by 1.5 %."""
    while True:
        yield 0.015 * rng.standard_t(3)


def _two_modes(rng: np.random.Generator) -> Iterator[float]:
    """Three processes in ten are 8 % slower, as with an unlucky layout of memory."""
    while True:
        yield 0.08 * (rng.random() < 0.3) + 0.01 * rng.standard_normal()


def _late(rng: np.random.Generator) -> Iterator[float]:
    """One process in ten is 30 % slower, because something else ran."""
    while True:
        yield 0.3 * (rng.random() < 0.1) + 0.01 * rng.standard_normal()


def _correlated(rng: np.random.Generator) -> Iterator[float]:
    """Each process resembles the one before (correlation 0.8, spread 5 %), as while another program comes and goes."""
    level = 0.05 * rng.standard_normal()
    while True:
        level = 0.8 * level + 0.05 * math.sqrt(1 - 0.8**2) * rng.standard_normal()
        yield level + 0.01 * rng.standard_normal()


NOISES: dict[str, Draw] = {
    "normal, 1 %": _normal(0.01),
    "normal, 2 %": _normal(0.02),
    "normal, 5 %": _normal(0.05),
    "heavy tails": _heavy,
    "two modes": _two_modes,
    "one process in ten is late": _late,
    "autocorrelated": _correlated,
}


@dataclass(frozen=True)
class Row:
    """How comparisons end, as shares, and how many rounds they take."""

    noise: str
    effect: float
    slower: float
    not_slower: float
    undecided: float
    rounds_median: float
    rounds_95: float


def simulate(noise: str, effect: float, simulations: int = SIMULATIONS) -> Row:
    """Compare two sides many times.

    Args:
        noise: key of `NOISES`.
        effect: B's true number over A's.
        simulations: number of comparisons.
    """
    states, rounds = [], []
    for number in range(simulations):
        rng = np.random.default_rng([sorted(NOISES).index(noise), round(100 * effect), number])
        states.append(_compare(NOISES[noise](rng), effect, number, rounds))
    slower, not_slower, undecided = (
        states.count(state) / simulations for state in ("slower", "not slower", "undecided")
    )
    median, most = statistics.median(rounds), float(np.quantile(rounds, 0.95))
    return Row(noise, effect, slower, not_slower, undecided, median, most)


def _compare(noise: Iterator[float], effect: float, seed: int, rounds: list[int]) -> str:
    """The answer of one comparison; its number of rounds is added to `rounds`."""
    a, b = (Side(name, Path("python"), Path()) for name in "AB")

    def measure(sides: Sequence[Side], *_: object) -> list[float]:
        return [math.exp(next(noise)) * (effect if side is b else 1.0) for side in sides]

    limits = Limits()
    [outcome] = Session((a, b), [Benchmark("step", ())], limits, measure=measure, seed=seed).run()
    found = outcome.verdict(limits, 1)
    assert found is not None
    rounds.append(found.rounds)
    return found.state


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the table."""
    with path.open("w", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for row in rows:
            writer.writerow([row.noise, *(f"{value:g}" for value in list(vars(row).values())[1:])])


def read(path: Path = TABLE) -> list[Row]:
    """Read the table."""
    with path.open(encoding="utf-8") as file:
        return [_parsed(row) for row in csv.DictReader(file)]


def _parsed(row: dict[str, str]) -> Row:
    noise, numbers = row["noise"], {name: float(row[name]) for name in HEAD[1:]}
    return Row(noise, **numbers)


def markdown(rows: Sequence[Row]) -> str:
    """The table for the page: for each noise, how comparisons end for each effect, in per cent."""
    names = [f"B / A {effect:g}" for effect in EFFECTS]
    lines = ["| noise | " + " | ".join(f"{name}: slower, not slower (rounds)" for name in names) + " |"]
    lines.append("|" + "---|" * (1 + len(EFFECTS)))
    for noise in NOISES:
        cells = [_cell(row) for row in rows if row.noise == noise]
        lines.append(f"| {noise} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    return f"{100 * row.slower:.1f}, {100 * row.not_slower:.1f} ({row.rounds_median:g})"


def update(page: Path, begin: str, table: str) -> None:
    """Write a table into the page, between the mark `begin` and the next end of a table."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{begin}{table}{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate everything and write the table."""
    parser = argparse.ArgumentParser(prog="python tests/calibration regressions", description=__doc__)
    parser.add_argument("--simulations", type=int, default=SIMULATIONS)
    parser.add_argument("--out", type=Path, default=TABLE)
    chosen = parser.parse_args(arguments)
    rows = [simulate(noise, effect, chosen.simulations) for noise in NOISES for effect in EFFECTS]
    write(rows, chosen.out)
    if chosen.out == TABLE:
        update(PAGE, BEGIN, markdown(rows))
    return 0
