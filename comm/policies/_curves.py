"""Predicts a learning curve by an ensemble of parametric curves.

The functions are those of Domhan et al. 2015 (IJCAI, table 1), which Klein et al. 2017 (ICLR) make the last layer of
their network. Each is fitted by bounded least squares from a fixed start, with a weak penalty on the distance from it.
The curves are weighted by the likelihood of the observed scores. Everything is deterministic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
PENALTY = 0.03  # weight of a parameter's distance from its start, in units of its range; needed for few points
PARAMETERS = 4  # parameters of the largest curves
NOISE = 0.01  # smallest standard deviation of a score, as a share of the curve's height


@dataclass(frozen=True)
class Curve:
    """A function of time x in (0, 1] and parameters, with their bounds and start; scores are scaled to about (0, 1)."""

    name: str
    value: Callable[..., Array]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    start: tuple[float, ...]


# time is in units of the horizon, so that the prediction is the value at x = 1
CURVES = (
    Curve("pow3", lambda x, c, a, k: c - a * x**-k, (0, 0, 0.01), (1.5, 2, 3), (0.8, 0.1, 0.5)),
    Curve("pow4", lambda x, c, a, b, k: c - (a * x + b) ** -k, (0, 0.01, 1, 0.05), (1.5, 200, 5, 4), (0.8, 20, 1, 0.7)),
    Curve("log power", lambda x, a, b, k: a / (1 + (x / np.exp(b)) ** k), (0, -8, -4), (1.5, 2, -0.05), (0.8, -3, -1)),
    Curve("log log linear", lambda x, a, b: np.log(a * np.log1p(99 * x) + b), (0, 0.8), (0.4, 2.2), (0.2, 1.1)),
    Curve(
        "vapor pressure",
        lambda x, a, b, c: np.exp(a + b / (x + 0.01) + c * np.log(x)),
        (-4, -1, 0),
        (0.4, 0, 2),
        (-0.3, -0.02, 0.1),
    ),
    Curve("Hill3", lambda x, c, k, n: c * x**n / (k**n + x**n), (0, 1e-3, 0.2), (1.5, 2, 4), (0.8, 0.1, 1)),
    Curve(
        "MMF",
        lambda x, c, d, k, n: c - (c - d) / (1 + (k * x) ** n),
        (0, -0.2, 0.1, 0.2),
        (1.5, 1, 200, 4),
        (0.8, 0.1, 10, 1),
    ),
    Curve(
        "exp4",
        lambda x, c, a, k, b: c - np.exp(-a * x**k + b),
        (0, 0.01, 0.1, -4),
        (1.5, 60, 2, 0.4),
        (0.8, 3, 0.6, -0.3),
    ),
    Curve(
        "Janoschek",
        lambda x, c, d, k, n: c - (c - d) * np.exp(-k * x**n),
        (0, -0.2, 0.01, 0.1),
        (1.5, 1, 60, 3),
        (0.8, 0.1, 3, 0.7),
    ),
    Curve(
        "Weibull",
        lambda x, c, d, k, n: c - (c - d) * np.exp(-((k * x) ** n)),
        (0, -0.2, 0.01, 0.1),
        (1.5, 1, 60, 3),
        (0.8, 0.1, 4, 0.7),
    ),
    Curve("ilog2", lambda x, c, a: c - a / np.log(99 * x + 2), (0, 0), (2, 3), (0.9, 0.5)),
)


def predict_score(points: Sequence[tuple[int, float]], horizon: int, best: float = np.inf) -> tuple[float, float]:
    """Predict the score at step `horizon`.

    Args:
        points: the observed (step, score), at least one; a larger score is better.
        horizon: a step after the last point.
        best: the largest possible score.

    Returns:
        The predicted score and its standard deviation.
    """
    from scipy.optimize import least_squares

    steps, scores = (np.asarray(column, np.float64) for column in zip(*sorted(points), strict=True))
    low, high = scores.min(), scores.max()
    height = best - low if np.isfinite(best) else 1.5 * (high - low)
    if len(points) < 2 or height <= 0:
        return float(scores[-1]), float(NOISE * max(abs(scores[-1]), 1.0))
    x, y = (steps + 1) / (horizon + 1), (scores - low) / height
    values, errors = [], []
    for curve in CURVES:
        lower, upper, start = (np.asarray(side, np.float64) for side in (curve.lower, curve.upper, curve.start))
        scale = upper - lower

        def residuals(parameters: Array, curve: Curve = curve, start: Array = start, scale: Array = scale) -> Array:
            with np.errstate(all="ignore"):
                residual = np.nan_to_num(curve.value(x, *parameters) - y, nan=9.0, posinf=9.0, neginf=-9.0)
            return np.concatenate([np.clip(residual, -9, 9), PENALTY * (parameters - start) / scale])

        fitted = least_squares(residuals, start, bounds=(lower, upper), max_nfev=200)
        values.append(float(np.clip(curve.value(np.ones(1), *fitted.x)[0], 0.0, 1.0 if np.isfinite(best) else 9.0)))
        errors.append(2 * fitted.cost)
    noise = max(min(errors) / len(points), NOISE**2)
    weights = np.exp(-(np.asarray(errors) - min(errors)) / (2 * noise))
    weights /= weights.sum()
    mean = float(weights @ values)
    # curves fitted to few points follow their noise: corrected for the number of parameters
    scatter = noise * len(points) / max(1, len(points) - PARAMETERS)
    spread = float(np.sqrt(weights @ (np.asarray(values) - mean) ** 2 + scatter))
    return float(low + height * mean), float(height * spread)
