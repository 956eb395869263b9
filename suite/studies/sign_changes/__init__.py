"""The share of a gradient's entries that change sign when Shampoo preconditions it, on a small Transformer.

The talk of 12 March 2021 states about 30 % for a snapshot of a Transformer that translates ("What do preconditioners
look like?"). Statistics and roots follow Gupta et al. 2018, algorithm 1: L and R sum G Gᵀ and Gᵀ G over all steps.
"""

import numpy as np
from numpy.typing import NDArray

RIDGE = 1e-6  # relative to the largest eigenvalue; matrix_epsilon of the official code (row C4-01)
Matrix = NDArray[np.float64]


def measure(seed: int, *, steps: int = 100) -> float:
    """The share of changed signs over all matrices, each entry counted once.

    Args:
        seed: of weights and batches.
        steps: training steps before the snapshot, which are Adam's.
    """
    from suite.studies.sign_changes.torch import gradients

    left: dict[str, Matrix] = {}
    right: dict[str, Matrix] = {}
    last: dict[str, Matrix] = {}
    for last in gradients(seed, steps):
        for name, gradient in last.items():
            left[name] = left.get(name, 0.0) + gradient @ gradient.T
            right[name] = right.get(name, 0.0) + gradient.T @ gradient
    changed = {name: changes(gradient, left[name], right[name]) for name, gradient in last.items()}
    return sum(changed.values()) / sum(gradient.size for gradient in last.values())


def changes(gradient: Matrix, left: Matrix, right: Matrix) -> int:
    """How many entries of L^(-1/4) G R^(-1/4) differ in sign from those of G.

    Args:
        gradient: (m, n).
        left: (m, m), symmetric.
        right: (n, n), symmetric.
    """
    preconditioned = inverse_fourth_root(left) @ gradient @ inverse_fourth_root(right)
    return int((np.sign(preconditioned) != np.sign(gradient)).sum())


def inverse_fourth_root(matrix: Matrix) -> Matrix:
    """(A + ridge · λ_max · I)^(-1/4) of a symmetric matrix."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return (vectors * (np.maximum(eigenvalues, 0.0) + RIDGE * eigenvalues[-1]) ** -0.25) @ vectors.T
