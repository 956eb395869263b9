"""Bits that inverse p-th roots lose, by the rule of thumb of the talk on Shampoo and by measurement (CL12)."""

from typing import Literal

import numpy as np


def measure(
    seed: int,
    *,
    quantity: Literal["formula", "worst", "rounded", "computed"],
    condition: float = 1e6,
    order: int = 4,
    dimension: int = 128,
) -> float:
    """Bits of precision lost by M^(-1/p).

    The talk of 12 March 2021 (table C2, row C2-06) prints: "Computing inverse pth root loses log2(1/p kappa(M)) bits
    of precision. A condition number of 10^6 loses 19 bits of precision; left with 4 bits in single precision".

    Args:
        seed: of the eigenvectors; the eigenvalues are spaced evenly in their logarithm.
        quantity: `formula`: log2(kappa / p). The others are log2 of the relative error of the root, in the spectral
            norm and in units of float32's 2^-24. `worst`: the smallest eigenvalue falls by 2^-24 of the largest, the
            worst change of that norm. `rounded`: M is rounded to float32, and the root is exact. `computed`: the
            eigendecomposition, too, is computed in float32.
        condition: kappa, ratio of the largest to the smallest eigenvalue.
        order: p.
        dimension: of the matrix.
    """
    if quantity == "formula":
        return float(np.log2(condition / order))
    values = np.logspace(0, -np.log10(condition), dimension)
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((dimension, dimension)))[0]
    exact = (basis * values ** (-1 / order)) @ basis.T
    if quantity == "worst":
        changed = (values[-1] - values[0] * 2.0**-24) ** (-1 / order)
        return float(np.log2((changed / values[-1] ** (-1 / order) - 1) * 2.0**24))
    rounded = ((basis * values) @ basis.T).astype(np.float32)
    rounded = np.tril(rounded) + np.tril(rounded, -1).T  # symmetric again
    if quantity == "rounded":
        root = inverse_root(rounded.astype(np.float64), order)
    else:
        root = inverse_root(rounded, order).astype(np.float64)
    error = np.linalg.norm(root - exact, 2) / np.linalg.norm(exact, 2)
    return float(np.log2(error * 2.0**24))


def inverse_root(matrix: np.ndarray, order: int) -> np.ndarray:
    """M^(-1/p) by eigendecomposition, in the type of the matrix; eigenvalues below 2^-24 of the largest are raised."""
    values, vectors = np.linalg.eigh(matrix)
    floor = values.dtype.type(2.0**-24) * values[-1]
    return (vectors * np.maximum(values, floor) ** values.dtype.type(-1 / order)) @ vectors.T
