"""Shampoo with power 1/2 against Adafactor in Shampoo's eigenbasis (Vyas et al., arXiv:2409.11321)."""

import numpy as np


def measure(
    seed: int, *, rows: int = 24, columns: int = 16, batches: int = 64, power: float = 0.5, averaged: bool = True
) -> float:
    """The relative difference between the updates of algorithms 1 and 2 for one gradient, with epsilon = 0.

    Algorithm 1: L = E[G G'], R = E[G' G] over the data set's batches; the update is L^-p G R^-p times trace(L)^(1/2),
    the scalar correction, with p = 1/2. Algorithm 2: G is rotated to Q_L' G Q_R, divided by the root of
    A C' / (1' A), and rotated back, where A and C are the row and column sums of the mean squared rotated gradient.

    Args:
        seed: of the gradients, whose rows and columns are correlated.
        rows: of the gradient.
        columns: of the gradient.
        batches: gradients of the data set.
        power: p; the published equivalence is for 1/2, Shampoo's first publication uses 1/4.
        averaged: whether A and C are averages over the data set, as in algorithm 2, or those of the one gradient.
    """
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((rows, rows)), random.standard_normal((columns, columns))
    gradients = mixing[0] @ random.standard_normal((batches, rows, columns)) @ mixing[1]
    left = np.mean(gradients @ gradients.transpose(0, 2, 1), axis=0)
    right = np.mean(gradients.transpose(0, 2, 1) @ gradients, axis=0)
    gradient = gradients[0]
    shampoo = _root(left, power) @ gradient @ _root(right, power) * np.trace(left) ** 0.5

    left_basis, right_basis = np.linalg.eigh(left)[1], np.linalg.eigh(right)[1]
    rotated = left_basis.T @ (gradients if averaged else gradients[:1]) @ right_basis
    squares = np.mean(rotated**2, axis=0)
    row_sums, column_sums = squares.sum(axis=1), squares.sum(axis=0)
    variance = np.outer(row_sums, column_sums) / row_sums.sum()  # line 12 of algorithm 2
    adafactor = left_basis @ (rotated[0] / np.sqrt(variance)) @ right_basis.T
    return float(np.linalg.norm(shampoo - adafactor) / np.linalg.norm(adafactor))


def _root(matrix: np.ndarray, power: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**-power) @ vectors.T
