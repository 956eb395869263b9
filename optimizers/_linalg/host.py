"""Inverse roots on the host in NumPy, one matrix at a time, and a thread that computes them during training."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from suite.optimizers._linalg import SOLVER


def inverse_root(stack: np.ndarray, order: int, *, epsilon: float) -> np.ndarray:
    """Compute the inverse root of each damped matrix by `eigh` in float64.

    Args:
        stack: symmetric positive semidefinite matrices (count, n, n).
        order: p of A^(-1/p).
        epsilon: ridge, relative to the largest eigenvalue.

    Returns:
        (count, n, n), in the type of the stack; NaN for a matrix without a usable root.
    """
    roots = np.full_like(stack, np.nan)
    for row, matrix in enumerate(stack):
        matrix = matrix.astype(np.float64)
        mean = np.trace(matrix) / len(matrix)
        if np.isfinite(matrix).all() and mean >= np.finfo(stack.dtype).tiny:
            root = _root(matrix / mean, order, epsilon, np.finfo(stack.dtype).eps)
            roots[row] = root * mean ** (-1.0 / order)
    return roots


def _root(matrix: np.ndarray, order: int, epsilon: float, unit: float) -> np.ndarray | float:
    try:
        values, vectors = np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        return np.nan
    values = np.maximum(values, 0.0)
    shares = values / values[-1]
    noise = max(unit / len(values) * np.linalg.norm(shares), SOLVER * np.finfo(np.float64).eps)
    values = values + epsilon * values[-1]
    return (vectors * values ** (-1.0 / order)) @ vectors.T if shares[0] + epsilon > noise else np.nan


class Job(NamedTuple):
    """A computation on the thread, and its inputs.

    Attributes:
        arguments: (order, epsilon).
        stack: the matrices.
        result: their roots.
    """

    arguments: tuple[int, float]
    stack: np.ndarray
    result: Future[np.ndarray]


class HostRoots:
    """Inverse roots that one thread computes ahead of time.

    The result of `finish` depends only on its arguments: the thread's result is used only if it began from equal ones;
    otherwise `finish` computes the roots itself. A checkpoint therefore does not contain any of this.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without jobs; `finish` of the copy computes the same results itself."""
        return HostRoots, ()

    def begin(self, name: str, stack: np.ndarray, order: int, epsilon: float) -> None:
        """Start computing the roots of a stack (count, n, n), which must not be changed from now on."""
        self._pool = self._pool or ThreadPoolExecutor(1, "roots")
        future = self._pool.submit(inverse_root, stack, order, epsilon=epsilon)
        self.jobs[name] = Job((order, epsilon), stack, future)

    def finish(self, name: str, stack: np.ndarray, order: int, epsilon: float) -> np.ndarray:
        """Return the roots of a stack; wait for the thread if it still computes them.

        Args:
            name: the name given to `begin`.
            stack: matrices (count, n, n).
            order: p of A^(-1/p).
            epsilon: ridge, relative to the largest eigenvalue.
        """
        job = self.jobs.pop(name, None)
        if job and job.arguments == (order, epsilon) and np.array_equal(job.stack, stack, equal_nan=True):
            return job.result.result()
        return inverse_root(stack, order, epsilon=epsilon)

    def drain(self) -> None:
        """Wait for all jobs."""
        for job in self.jobs.values():
            job.result.result()
