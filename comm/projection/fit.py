"""From measured times to a network's numbers, by least squares with nothing below zero."""

from collections.abc import Sequence

import numpy as np

from suite.comm.projection.network import Level
from suite.contract import UserError

Point = tuple[float, float, float]  # messages, bytes, seconds


def fit(points: Sequence[Point], *, shared: bool = False) -> Level:
    """Latency and bandwidth of one level from measured collectives.

    Args:
        points: for each, `Cost.messages` and `Cost.bytes` of that level, and the seconds that it took.
        shared: what the level will say of itself; `Cost.bytes` must have been counted so.

    Raises:
        UserError: where the points do not tell a bandwidth: fewer than two, or a time that does not grow with bytes.
    """
    if len(points) < 2:
        raise UserError(f"fit: {len(points)} point(s), and there are two numbers to be found; measure more sizes")
    table = np.array(points, float)
    latency, by_byte = least_squares(table[:, :2], table[:, 2])
    if by_byte <= 0:
        raise UserError("fit: the measured times do not grow with the bytes; measure larger sizes")
    return Level(float(latency), float(1 / by_byte), shared)


def least_squares(columns: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative x (k,) for which columns (n, k) · x is nearest to the seconds (n,), in squares of relative error.

    Where the best x would have negative entries, the most negative one is set to zero, and so on.
    """
    rows = columns / seconds[:, None]
    scale = np.where((norms := np.linalg.norm(rows, axis=0)) > 0, norms, 1.0)  # columns differ by many orders
    kept = list(range(rows.shape[1]))
    found = np.zeros(rows.shape[1])
    while kept:
        solved = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if (solved >= 0).all():
            found[kept] = solved / scale[kept]
            break
        kept.pop(int(solved.argmin()))
    return found
