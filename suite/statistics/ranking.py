"""Ranks that follow from which row is earlier than which: an interval for each rank, tiers, and the leader."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


class Ranking:
    """Which rows are earlier than which, and the ranks that follow.

    Attributes:
        wins: of shape (rows, rows); wins[i, j] if row i is shown to be earlier than row j, or than a row that is. Rows
            in a circle (i before j, j before k, k before i) have no order; their wins are left out.
    """

    def __init__(self, wins: Flags) -> None:
        """Order the rows.

        Args:
            wins: of shape (rows, rows), for each pair that is shown.
        """
        self.wins: Flags = _reach(wins & ~_reach(wins).T)

    @cached_property
    def ranks(self) -> tuple[tuple[int, int], ...]:
        """Lowest and highest possible rank of each row.

        If all wins are true, then all intervals contain the rows' true ranks (Mogstad, Romano, Shaikh and Wilhelm,
        "Inference for Ranks", Review of Economic Studies 91 (2024)).
        """
        lows, highs = 1 + self.wins.sum(axis=0), len(self.wins) - self.wins.sum(axis=1)
        return tuple((int(low), int(high)) for low, high in zip(lows, highs, strict=True))

    @cached_property
    def tiers(self) -> tuple[int, ...]:
        """Tier of each row, from 1. Every row of a tier is earlier than every row of the tiers after it."""
        score = self.wins.sum(axis=0) - self.wins.sum(axis=1)
        order = np.argsort(score, kind="stable")
        tiers, tier = [0] * len(order), 1
        for place, row in enumerate(order):
            tier += bool(place) and bool(self.wins[np.ix_(order[:place], order[place:])].all())
            tiers[row] = tier
        return tuple(tiers)

    @property
    def possible_best(self) -> tuple[int, ...]:
        """Rows that no other row is shown to precede."""
        return tuple(int(row) for row in np.flatnonzero(~self.wins.any(axis=0)))

    @property
    def leader(self) -> int | None:
        """Only one of them, which is earlier than every other row; None if there are several, or no other row."""
        return self.possible_best[0] if len(self.possible_best) == 1 < len(self.wins) else None


def _reach(wins: Flags) -> Flags:
    """Return the rows that follow each row through any number of wins."""
    reached = wins.astype(np.float32)
    for _ in range(len(wins).bit_length()):  # each doubles the number of wins on the way
        reached = np.minimum(1, reached + reached @ reached)
    return reached > 0
