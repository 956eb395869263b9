"""Error rates of the change points of `suite regress --history`: `python tests/calibration changes` prints a table.

Series are autoregressive (first order), with a spread of 2 %, with and without a lasting change of 10 % in the middle.
"""

from collections.abc import Sequence

import numpy as np

from suite.regress.changes import find_changes

SERIES = 200  # of each kind
SPREAD = 0.02


def rate(length: int, correlation: float, change: float, *, series: int = SERIES, seed: int = 0) -> float:
    """The share of series in which a change is found; with `change` 0 these are false alarms.

    Args:
        length: of each series.
        correlation: of neighbours.
        change: of the logarithm, in the middle of the series.
        series: number of them.
        seed: of their random numbers.
    """
    rng, found = np.random.default_rng(seed), 0
    for _ in range(series):
        noise = rng.normal(size=length + 50)
        for index in range(1, len(noise)):
            noise[index] = correlation * noise[index - 1] + noise[index] * (1 - correlation**2) ** 0.5
        values = np.exp(SPREAD * noise[50:] + change * (np.arange(length) >= length // 2))
        found += bool(find_changes(list(values)))
    return found / series


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table in Markdown."""
    print("| values | correlation | false alarms | change of 10 % found |\n|---|---|---|---|")
    for length in (20, 30, 60, 120):
        for correlation in (0.0, 0.5, 0.8):
            shares = (rate(length, correlation, change) for change in (0.0, float(np.log(1.1))))
            print(f"| {length} | {correlation} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
