"""Dion with compressed gradient synchronization against Dion with averaged gradients (microsoft/dion, README)."""

import numpy as np


def measure(
    seed: int,
    *,
    rank: int = 8,
    ranks: int = 2,
    steps: int = 20,
    single: bool = False,
    rows: int = 32,
    columns: int = 24,
) -> float:
    """Return the largest relative difference of the weights over the steps.

    Each rank adds its own gradient to its own momentum M. Only P = M Q and R = M' P are averaged over ranks.

    Args:
        seed: of gradients, weights and Q.
        rank: columns of Q.
        ranks: number of ranks.
        steps: number of steps.
        single: float32 instead of float64.
        rows: of the weights.
        columns: of the weights.
    """
    random, dtype = np.random.default_rng(seed), np.float32 if single else np.float64
    gradients = random.standard_normal((steps, ranks, rows, columns)).astype(dtype)
    start, basis = random.standard_normal((rows, columns)), random.standard_normal((columns, rank))
    compressed = run(gradients, start.astype(dtype), basis.astype(dtype))
    averaged = run(gradients.mean(axis=1, keepdims=True), start.astype(dtype), basis.astype(dtype))
    norms = np.linalg.norm(averaged - start, axis=(1, 2))
    return float(np.max(np.linalg.norm(compressed - averaged, axis=(1, 2)) / norms))


def run(
    gradients: np.ndarray, weights: np.ndarray, basis: np.ndarray, rate: float = 0.01, decay: float = 0.95
) -> np.ndarray:
    """Return the weights after each step.

    Args:
        gradients: (steps, ranks, rows, columns).
        weights: at the start.
        basis: Q at the start, (columns, rank).
        rate: learning rate.
        decay: mu, of the momentum.
    """
    momentum, visited = np.zeros_like(gradients[0]), []
    scale = rate * (weights.shape[0] / weights.shape[1]) ** 0.5
    for gradient in gradients:
        momentum = momentum + gradient
        left = np.linalg.qr((momentum @ basis).mean(axis=0))[0]
        own = momentum.transpose(0, 2, 1) @ left
        momentum = momentum - (1 - decay) * left @ own.transpose(0, 2, 1)  # what was applied leaves, the error stays
        right = own.mean(axis=0)
        basis = right / (np.linalg.norm(right, axis=0) + 1e-8)
        weights = weights - scale * left @ basis.T
        visited.append(weights)
    return np.array(visited)
