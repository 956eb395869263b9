"""Inverse roots on the host, in NumPy, one matrix at a time; and a thread that takes them while training goes on."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from suite.optimizers._linalg import SOLVER


def inverse_root(stack: np.ndarray, order: int, *, epsilon: float) -> np.ndarray:
    """The inverse root of each damped matrix; not finite where there is none.

    Arguments as in `suite.optimizers._linalg.torch.inverse_root`; the method is `eigh`, in float64.
    """
    found = np.full_like(stack, np.nan)
    for row, matrix in enumerate(stack):
        matrix = matrix.astype(np.float64)
        mean = np.trace(matrix) / len(matrix)
        if np.isfinite(matrix).all() and mean >= np.finfo(stack.dtype).tiny:
            root = _root(matrix / mean, order, epsilon, np.finfo(stack.dtype).eps)
            found[row] = root * mean ** (-1.0 / order)
    return found


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
    """Work under way, and what it began from."""

    arguments: tuple[int, float]
    stack: np.ndarray
    result: Future[np.ndarray]


class HostRoots:
    """Inverse roots taken ahead of time by one thread.

    What `finish` returns is determined by its arguments alone: a job counts only where it began from the very same
    ones, and otherwise the work is done there and then. So a restored run needs none of this in its checkpoint.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, name: str, stack: np.ndarray, order: int, epsilon: float) -> None:
        """Start on a stack (count, n, n), which nobody may change from now on."""
        self._pool = self._pool or ThreadPoolExecutor(1, "roots")
        future = self._pool.submit(inverse_root, stack, order, epsilon=epsilon)
        self.jobs[name] = Job((order, epsilon), stack, future)

    def finish(self, name: str, stack: np.ndarray, order: int, epsilon: float) -> np.ndarray:
        """The roots; waits for the thread where it is not done."""
        job = self.jobs.pop(name, None)
        if job and job.arguments == (order, epsilon) and np.array_equal(job.stack, stack, equal_nan=True):
            return job.result.result()
        return inverse_root(stack, order, epsilon=epsilon)

    def drain(self) -> None:
        """Wait for all that is under way."""
        for job in self.jobs.values():
            job.result.result()
