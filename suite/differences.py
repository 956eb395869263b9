"""Compares two sets of named arrays, such as the gradients of two computations, and names the first difference."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray]
SMALLEST = float(np.finfo(np.float64).tiny)  # of two unequal numbers whose difference is rounded to 0


def find_difference(expected: Arrays, found: Arrays, tolerance: float = 0.0) -> str | None:
    """Find the first array that differs, in the order of `expected`.

    Args:
        expected: arrays of the reference, by name.
        found: arrays that are compared with them.
        tolerance: distance that counts as equal, as a share of the expected array's norm. An array that is rounding
            itself, such as the gradient of a bias before a normalization, may differ by the square of this share of the
            largest norm. 0: the numbers are equal; NaN equals NaN.

    Returns:
        Its name and how it differs, in words; None if all are equal.

    Example:
        >>> find_difference({"weight": np.ones(4)}, {"weight": np.zeros(4)}, tolerance=1e-4)
        'weight differs by 1 of its norm'
    """
    largest = max(map(_norm, expected.values()), default=0.0)
    for name in (*expected, *found):
        if name not in expected or name not in found:
            return f"{name} is {'missing' if name in expected else 'not expected'}"
        before, after = expected[name], found[name]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            return f"{name} is {after.dtype}{list(after.shape)} instead of {before.dtype}{list(before.shape)}"
        norm, distance = _norm(before), _distance(before, after)
        if not distance <= tolerance * norm + tolerance**2 * largest:  # NaN differs
            return f"{name} differs by " + (f"{distance / norm:.2g} of its norm" if norm else f"{distance:.2g} from 0")
    return None


def measure_difference(expected: Arrays, found: Arrays) -> float:
    """Return the largest distance between two arrays of one name, as a share of the largest norm; 0: all are equal."""
    largest = max(map(_norm, expected.values()), default=0.0)
    return max((_distance(expected[name], found[name]) for name in expected), default=0.0) / (largest or 1.0)


def _norm(array: npt.NDArray) -> float:
    """Euclidean norm of the finite numbers."""
    return float(np.linalg.norm(array[np.isfinite(array)].astype(_wide(array))))


def _distance(before: npt.NDArray, after: npt.NDArray) -> float:
    """Euclidean norm of the difference; 0 between equal infinities and between NaN."""
    same = (before == after) | ((before != before) & (after != after))
    difference = after[~same].astype(_wide(before)) - before[~same].astype(_wide(before))
    return max(float(np.linalg.norm(difference)), difference.size * SMALLEST) if difference.size else 0.0


def _wide(array: npt.NDArray) -> type:
    return np.complex128 if np.iscomplexobj(array) else np.float64
