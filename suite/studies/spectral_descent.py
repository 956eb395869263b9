"""Shampoo without accumulation against steepest descent under the spectral norm (`optax.contrib.scale_by_muon`)."""

import numpy as np


def measure(seed: int, *, rows: int = 48, columns: int = 32, power: float = 0.25, past: int = 0) -> float:
    """Return the relative difference between L^-p G R^-p and U V', where G = U S V'.

    L = G G' and R = G' G, plus those of earlier gradients; on the zero eigenvalues of a factor its power is 0.

    Args:
        seed: of the gradients.
        rows: of the gradient.
        columns: of the gradient.
        power: p; Shampoo has 1/4.
        past: number of earlier gradients that the factors accumulate.
    """
    gradients = np.random.default_rng(seed).standard_normal((past + 1, rows, columns))
    left = np.sum(gradients @ gradients.transpose(0, 2, 1), axis=0)
    right = np.sum(gradients.transpose(0, 2, 1) @ gradients, axis=0)
    shampoo = _root(left, power) @ gradients[-1] @ _root(right, power)
    u, _, v = np.linalg.svd(gradients[-1], full_matrices=False)
    return float(np.linalg.norm(shampoo - u @ v) / np.linalg.norm(u @ v))


def _root(matrix: np.ndarray, power: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    kept = values > 1e-10 * values[-1]
    return (vectors[:, kept] * values[kept] ** -power) @ vectors[:, kept].T
