"""`python tests/calibration ranks`: how often the rules for ranks are wrong, and how often they find a leader.

Simulates ladders with equal rows, and ladders with a leader, and applies the rules of `suite/statistics/`. Writes
`results/ranks.csv`, which docs/statistics.md explains. Every scenario has its own random numbers, so that each can be
simulated alone. The same command writes the same bytes, in about eight minutes.
"""

import argparse
import csv
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from calibration.ranks_ladders import Floats, Ladder, draw_values, list_nulls, list_unequal_shapes

from suite.statistics.anytime import LEAST_SEEDS, rank_anytime
from suite.statistics.ranking import Flags, Ranking
from suite.statistics.registered import divide_error, rank_registered

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "results" / "ranks.csv"
NULLS = {
    3: 400,
    5: 400,
    7: 150,
}  # simulations of each ladder with equal rows: the standard error of 5 % is 1.1 or 1.8 %
POWER = 200
MOST_SEEDS = 20
EFFECTS = ((0.05, 1.1), (0.12, 1.25), (0.12, 1.5), (0.3, 1.5), (0.3, 2.0))  # spread, ratio
POWER_ROWS, POWER_SEEDS = 5, (5, 10, 15, 20)
ONE_LOOK, TWO_LOOKS, OPEN = "A, one look at 10", "A, looks at 5 and 10", "B, a look after each seed"
LOOKS = {ONE_LOOK: (10,), TWO_LOOKS: (5, 10)}


@dataclass(frozen=True)
class Share:
    """One row of the table.

    Attributes:
        study: "null" (equal rows: any wrong claim), "late" (outside the assumptions) or "power" (the leader is found).
        scenario: the ladder.
        rule: how it is decided.
        rows: number of rows.
        seeds: most seeds.
        share: of the simulations.
        simulations: number of them.
    """

    study: str
    scenario: str
    rule: str
    rows: int
    seeds: int
    share: float
    simulations: int


def rank(values: Floats, rule: str) -> Ranking:
    """Rank a simulated ladder by a rule."""
    rows = values.shape[1]
    if rule in LOOKS:
        return rank_registered(values, divide_error(rows, LOOKS[rule]))
    pairs = itertools.combinations(range(rows), 2)
    return rank_anytime(rows, {(i, j): (values[:, i] - values[:, j]).tolist() for i, j in pairs})


def count_errors(study: str, scenario: str, ladder: Ladder, simulations: int) -> Iterator[Share]:
    """Yield the share of ladders on which a rule ever makes a claim between equal rows."""
    rows = len(ladder.ratios)
    rng = _generator(f"{scenario} {rows}")
    wrong = dict.fromkeys((ONE_LOOK, TWO_LOOKS, OPEN), 0)
    for _ in range(simulations):
        values = draw_values(ladder, MOST_SEEDS, rng)
        for rule in wrong:
            looks = LOOKS[rule][-1:] if rule in LOOKS else range(LEAST_SEEDS, MOST_SEEDS + 1)
            wrong[rule] += any(_errs(rank(values[:seeds], rule), ladder) for seeds in looks)
    for rule, count in wrong.items():
        yield Share(study, scenario, rule, rows, LOOKS.get(rule, (MOST_SEEDS,))[-1], count / simulations, simulations)


def _errs(ranking: Ranking, ladder: Ladder) -> bool:
    ratios = np.array(ladder.ratios)
    equal: Flags = (ratios[:, None] == ratios) & np.isfinite(ratios)
    return bool((ranking.wins & equal).any())


def measure_power(spread: float, ratio: float, simulations: int = POWER) -> Iterator[Share]:
    """Yield the share of ladders on which the first row is found to lead; all others need `ratio` times its steps."""
    scenario = f"spread {spread:g}, ratio {ratio:g}"
    rng = _generator(f"power {scenario}")
    ladder = Ladder((1.0, *[ratio] * (POWER_ROWS - 1)), spread=spread, budget=40.0)
    found: dict[tuple[str, int], int] = {}
    for _ in range(simulations):
        values = draw_values(ladder, MOST_SEEDS, rng)
        for rule, seeds in itertools.product((*LOOKS, OPEN), POWER_SEEDS):
            if rule == TWO_LOOKS and seeds > LOOKS[rule][-1]:
                continue
            if rule == ONE_LOOK:  # one look, at this number of seeds
                leads = rank_registered(values[:seeds], divide_error(POWER_ROWS, (seeds,))).leader == 0
            else:
                leads = rank(values[:seeds], rule).leader == 0
            found[rule, seeds] = found.get((rule, seeds), 0) + leads
    for (rule, seeds), count in found.items():
        yield Share("power", scenario, rule, POWER_ROWS, seeds, count / simulations, simulations)


def simulate() -> Iterator[Share]:
    """Yield all rows of the table."""
    for rows, simulations in NULLS.items():
        for name, ladder in list_nulls(rows).items():
            yield from count_errors("null", name, ladder, simulations)
        for name, ladder in list_unequal_shapes(rows).items():
            yield from count_errors("late", name, ladder, simulations)
    for spread, ratio in EFFECTS:
        yield from measure_power(spread, ratio)


def write_table(rows: Sequence[Share], path: Path) -> None:
    """Write the table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Share)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) | {"share": f"{row.share:.4f}"} for row in rows)


def read_table(path: Path = TABLE) -> list[Share]:
    """Return the rows of a table that `write_table` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Share(study, scenario, rule, int(rows), int(seeds), float(share), int(simulations))
            for study, scenario, rule, rows, seeds, share, simulations in list(csv.reader(file))[1:]
        ]


def find_worst(table: Sequence[Share], study: str, rule: str, rows: int) -> Share:
    """Return the row of the table with the most errors."""
    return max(
        (row for row in table if (row.study, row.rule, row.rows) == (study, rule, rows)), key=lambda row: row.share
    )


def _generator(name: str) -> np.random.Generator:
    """Return random numbers that belong to a name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser(prog="python tests/calibration ranks", description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    table: list[Share] = []
    for row in simulate():
        table.append(row)
        print(f"{row.rows} rows, {row.scenario}; {row.rule}, {row.seeds} seeds: {100 * row.share:.1f} %", flush=True)
    write_table(table, chosen.table)
    if any(row.share > 0.05 + 3 * math.sqrt(0.05 * 0.95 / row.simulations) for row in table if row.study == "null"):
        print("a rule is wrong more often than in 5 % of ladders")
        return 1
    return 0
