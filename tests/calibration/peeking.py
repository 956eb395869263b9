"""`python tests/calibration peeking`: how often rules are wrong if somebody looks after every seed.

Simulates false claims. Writes `results/peeking.csv` and draws `docs/images/peeking.svg` from it. docs/statistics.md
explains both. Every scenario has its own random numbers, so that each can be simulated alone. The same command writes
the same bytes.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from calibration.peeking_rules import (
    ALPHA,
    Flags,
    Floats,
    Share,
    critical_ts,
    generator,
    naive_ts,
    rounded_bounds,
    sufficient,
    t_statistics,
)

ROOT = Path(__file__).parents[2]
CLAIMS = 10_000  # false claims in each scenario: the standard error of a share of 5 % is 0.2 %
MOST_SEEDS = 30
SHOWN = (2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30)  # numbers of seeds in the table
ROUNDING = 3.0  # spacing of the rounded values, in spreads


# ------------------------------------------------------------------------------------------------------- false claims
def _autocorrelated(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Gaussian values whose correlation with the previous one is 0.3."""
    noise = rng.standard_normal(shape)
    values = noise.copy()
    for seed in range(1, shape[1]):
        values[:, seed] = 0.3 * values[:, seed - 1] + math.sqrt(1 - 0.3**2) * noise[:, seed]
    return values


@dataclass(frozen=True)
class Distribution:
    """Of the values of seeds, with its mean and its median."""

    draw: Callable[[np.random.Generator, tuple[int, int]], Floats]
    mean: float = 0.0
    median: float = 0.0


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": Distribution(lambda rng, shape: rng.standard_normal(shape)),
    "t with 3 degrees of freedom": Distribution(lambda rng, shape: rng.standard_t(3, shape)),
    "lognormal, spread 10 %": Distribution(lambda rng, shape: rng.lognormal(0, 0.1, shape), math.exp(0.1**2 / 2), 1.0),
    "lognormal, spread 50 %": Distribution(lambda rng, shape: rng.lognormal(0, 0.5, shape), math.exp(0.5**2 / 2), 1.0),
    "bimodal, equal halves": Distribution(
        lambda rng, shape: rng.choice([-1.0, 1.0], shape) + 0.25 * rng.standard_normal(shape)
    ),
    "one seed in five is late": Distribution(
        lambda rng, shape: 5.0 * (rng.random(shape) < 0.2) + rng.standard_normal(shape),
        mean=1.0,
        median=0.318639,  # 0.8·Φ(x) + 0.2·Φ(x − 5) = 1/2
    ),
    "autocorrelated (0.3)": Distribution(_autocorrelated),
    # an evaluation every 3 spreads; the mean lies a quarter of that from an evaluation, where rounding changes it
    "normal, rounded": Distribution(
        lambda rng, shape: ROUNDING * np.round(0.25 + rng.standard_normal(shape) / ROUNDING) - 0.25 * ROUNDING
    ),
}
ROUNDED = "normal, rounded"


def false_claims(scenario: str, simulations: int = CLAIMS) -> Iterator[Share]:
    """Test the claims "the mean (median) is below b" and "above b", where it is b; the more frequent error counts.

    Args:
        scenario: name of a distribution.
        simulations: number of them.
    """
    distribution = DISTRIBUTIONS[scenario]
    values = distribution.draw(generator(f"claim {scenario}"), (simulations, MOST_SEEDS))
    t = t_statistics(values - distribution.mean)
    below, above = values < distribution.median, values > distribution.median
    anytime, naive = critical_ts(MOST_SEEDS, ALPHA), naive_ts(MOST_SEEDS, ALPHA)
    decided: dict[str, list[Flags]] = {
        "sequential mean": [t < -anytime, t > anytime],
        "sequential median": [sufficient(side, ALPHA)[:, 1:] for side in (below, above)],
        "t-test until p < .05": [t < -naive, t > naive],
    }
    if scenario == ROUNDED:
        low, high = rounded_bounds(values, ROUNDING, ALPHA)
        decided["sequential mean, resolution stated"] = [high < 0, low > 0]
        sides = (values + ROUNDING / 2 < 0, values - ROUNDING / 2 > 0)
        decided["sequential median, resolution stated"] = [sufficient(side, ALPHA)[:, 1:] for side in sides]
    for rule, sides in decided.items():
        ever = np.maximum(*(np.maximum.accumulate(side, axis=1).mean(axis=0) for side in sides))
        for seeds in SHOWN:
            yield Share("claim", scenario, rule, seeds, float(ever[seeds - 2]), simulations)
    one_look = max(float(side[:, 5 - 2].mean()) for side in decided["t-test until p < .05"])
    yield Share("claim", scenario, "t-test at 5 seeds only", 5, one_look, simulations)


def study() -> list[Share]:
    """All simulations; about 10 seconds."""
    return [row for scenario in DISTRIBUTIONS for row in false_claims(scenario)]


# ------------------------------------------------------------------------------------------------- table and figure
def write(rows: Sequence[Share], path: Path) -> None:
    """Write the table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Share)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) | {"share": f"{row.share:.4f}"} for row in rows)


def read(path: Path) -> list[Share]:
    """The rows of a table that `write` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Share(study, scenario, rule, int(seeds), float(share), int(simulations))
            for study, scenario, rule, seeds, share, simulations in list(csv.reader(file))[1:]
        ]


RULES = {  # colour and label of each rule in the figure
    "t-test until p < .05": ("#7a7a7a", "t-test after every seed"),
    "sequential mean": ("#c2410c", "this suite, mean"),
    "sequential median": ("#1d4ed8", "this suite, median"),
}


def draw(rows: Sequence[Share], path: Path) -> None:
    """Draw the shares of false claims that were ever believed; the same rows give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    claims = [row for row in rows if row.study == "claim" and row.rule in RULES]
    scenarios = list(dict.fromkeys(row.scenario for row in claims))
    with matplotlib.rc_context({"svg.hashsalt": "suite", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        curves, dots = figure.subplots(1, 2, width_ratios=(1, 1))
        for rule, (colour, label) in RULES.items():
            points = [(row.seeds, 100 * row.share) for row in claims if (row.scenario, row.rule) == ("normal", rule)]
            curves.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.5)
            last = {row.scenario: 100 * row.share for row in claims if (row.rule, row.seeds) == (rule, MOST_SEEDS)}
            dots.plot([last[name] for name in scenarios], scenarios, "o", color=colour, markersize=5)
        curves.axhline(100 * ALPHA, color="black", linestyle=":", linewidth=1)
        curves.set(xlabel="seeds, looked at after each", ylabel="false claims ever believed (%)", ylim=(0, None))
        curves.set_title("Normal seeds")
        curves.legend(frameon=False)
        dots.axvline(100 * ALPHA, color="black", linestyle=":", linewidth=1)
        dots.set(xlabel=f"after up to {MOST_SEEDS} seeds (%)", xlim=(0, None), title="Other distributions")
        dots.invert_yaxis()
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, write the table and draw the figure."""
    parser = argparse.ArgumentParser(prog="python tests/calibration peeking", description=__doc__)
    parser.add_argument("--table", type=Path, default=ROOT / "results" / "peeking.csv", help="default: %(default)s")
    parser.add_argument(
        "--figure", type=Path, default=ROOT / "docs" / "images" / "peeking.svg", help="default: %(default)s"
    )
    chosen = parser.parse_args(arguments)
    write(study(), chosen.table)
    draw(read(chosen.table), chosen.figure)
    print(f"{chosen.table} and {chosen.figure} are written")
    return 0
