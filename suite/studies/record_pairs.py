"""Records of modded-nanogpt's track 3, judged by the board's own rule for pairs (README of the track)."""

import csv
import math
from itertools import pairwise
from pathlib import Path
from typing import Literal

from suite.contract import UserError

TABLE = Path(__file__).parents[3] / "shared" / "data" / "modded_nanogpt_track3" / "table.csv"
PER_STEP = 0.0045 / 100  # loss that a step is worth
LIMIT = 0.004  # of the difference in loss, for two runs of one seed each
SPREAD = 0.0013  # standard deviation of a run's loss

Row = dict[str, float]


def measure(
    seed: int, *, quantity: Literal["share", "difference", "p-value"], table: str = "", first: int = 0, second: int = 0
) -> float:
    """Return a number of the board's rule for two results.

    The rule: (difference of the mean losses + that of the steps times 0.0045 / 100) / sqrt(1/n1 + 1/n2) >= 0.004.

    Args:
        seed: unused.
        quantity: `share`: of the records that meet the rule against the record before. `difference`: the left side of
            the rule, for a row against an earlier one. `p-value`: of this difference, one-sided, with a standard
            deviation of 0.0013.
        table: path of the README's table as CSV; by default the copy among the shared data.
        first: the earlier row; 0 for `share`.
        second: the later row; 0 for `share`.

    Raises:
        UserError: if there is no such file.
    """
    rows = read_rows(Path(table) if table else TABLE)
    if quantity != "share":
        better = compare(rows[first], rows[second])
        return better if quantity == "difference" else math.erfc(better / SPREAD / 2**0.5) / 2
    records = [row for row in rows.values() if row["record"]]
    return sum(compare(*pair) >= LIMIT for pair in pairwise(records)) / (len(records) - 1)


def compare(first: Row, second: Row) -> float:
    """Return by how much the second row is better, in loss for two runs of one seed."""
    gained = first["loss"] - second["loss"] + (first["steps"] - second["steps"]) * PER_STEP
    return gained / (1 / first["n"] + 1 / second["n"]) ** 0.5


def read_rows(path: Path) -> dict[int, Row]:
    """Return the rows of the table by number, in the order in which they were accepted.

    Raises:
        UserError: if there is no such file.
    """
    if not path.is_file():
        raise UserError(f"{path}: absent; set table=FILE to the README's table as CSV (row, steps, record, …)")
    with path.open(encoding="utf-8") as file:
        return {
            int(row["row"]): {
                "steps": float(row["steps"]),
                "record": float(row["record"] == "yes"),
                "loss": float(row["printed_mean_val_loss"]),
                "n": float(row["printed_n"]),
            }
            for row in csv.DictReader(file)
        }
