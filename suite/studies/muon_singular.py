"""Singular values after Muon's five Newton-Schulz iterations (KellerJordan/Muon, docstring in muon.py)."""

from typing import Literal

import numpy as np

A, B, C = 3.4445, -4.7750, 2.0315  # zeropower_via_newtonschulz5 in KellerJordan/Muon, muon.py


def measure(
    seed: int,
    *,
    rows: int = 1024,
    columns: int = 1024,
    quantity: Literal["distance", "inside", "largest"],
    steps: int = 5,
) -> float:
    """A property of the singular values that the iteration makes from a matrix of independent normal numbers.

    The iteration X <- a X + (b X X' + c (X X')^2) X maps each singular value s to a s + b s^3 + c s^5 and keeps the
    singular vectors. It is therefore applied to the singular values, in float64; the repository uses bfloat16.

    Args:
        seed: of the matrix.
        rows: of the matrix.
        columns: of the matrix.
        quantity: `distance`: Kolmogorov-Smirnov distance from the uniform distribution on [0.5, 1.5]. `inside`: share
            of the singular values in [0.5, 1.5]. `largest`: the largest one.
        steps: iterations; the repository's default is 5.
    """
    from scipy import stats

    matrix = np.random.default_rng(seed).standard_normal((rows, columns))
    values = np.linalg.svd(matrix, compute_uv=False)
    values = iterate(values / (np.sqrt(np.sum(values**2)) + 1e-7), steps)  # divided by the Frobenius norm
    if quantity == "distance":
        return float(stats.kstest(values, stats.uniform(0.5, 1.0).cdf).statistic)
    return float(np.mean((values >= 0.5) & (values <= 1.5)) if quantity == "inside" else values.max())


def iterate(values: np.ndarray, steps: int) -> np.ndarray:
    """The quintic polynomial, applied `steps` times."""
    for _ in range(steps):
        values = A * values + B * values**3 + C * values**5
    return values
