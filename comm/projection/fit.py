"""Fits a network's latency and bandwidth to measured times, by non-negative least squares."""

from collections.abc import Sequence

import numpy as np

from suite.comm.projection.network import Level
from suite.contract import UserError

Point = tuple[float, float, float]  # messages, bytes, seconds


def fit_level(points: Sequence[Point], *, shared: bool = False) -> Level:
    """Latency and bandwidth of one level from measured collectives.

    Args:
        points: `Cost.messages` and `Cost.bytes` of the level, and the measured seconds, for each collective.
        shared: `Level.shared` of the result; `Cost.bytes` must have been computed with the same value.

    Returns:
        The level: latency in seconds, bandwidth in bytes a second.

    Raises:
        UserError: if the points do not determine a bandwidth: fewer than two, or times that do not grow with the bytes.
    """
    if len(points) < 2:
        raise UserError(f"fit: {len(points)} point(s), but two parameters must be fitted; measure more sizes")
    table = np.array(points, float)
    latency, by_byte = least_squares(table[:, :2], table[:, 2])
    if by_byte <= 0:
        raise UserError("fit: the measured times do not grow with the bytes; measure larger sizes")
    return Level(float(latency), float(1 / by_byte), shared)


def least_squares(columns: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative least squares: minimise the sum of squared relative errors of columns · x.

    If the unconstrained solution has negative entries, the most negative one is set to zero, and the rest is solved
    again.

    Args:
        columns: (n, k).
        seconds: (n,), positive.

    Returns:
        x, (k,).
    """
    rows = columns / seconds[:, None]
    scale = np.where((norms := np.linalg.norm(rows, axis=0)) > 0, norms, 1.0)  # columns differ by many orders
    free = list(range(rows.shape[1]))  # entries of x that are not set to zero
    x = np.zeros(rows.shape[1])
    while free:
        solution = np.linalg.lstsq(rows[:, free] / scale[free], np.ones(len(rows)), rcond=None)[0]
        if (solution >= 0).all():
            x[free] = solution / scale[free]
            break
        free.pop(int(solution.argmin()))
    return x
