"""No compression: an array's own bytes, little-endian. float32 in ordinary runs, float64 in double-precision ones.

The specification in NumPy. A codec turns a flat array into one uint8 payload and back, and declares what is lost.
"""

import numpy as np

SUMMARY = "the gradient's own bytes; the sum is the backend's native all-reduce"
CITATION = ""
NEEDS = ()
CLOSED = True  # a sum of encoded values may be taken by the transport itself, in the array's own type
UNBIASED = True


def nbytes(count: int, itemsize: int = 4) -> int:
    """Payload bytes of `count` values of `itemsize` bytes."""
    return count * itemsize


def bound(values: np.ndarray) -> np.ndarray:
    """Largest absolute error of one round trip, for each value."""
    return np.zeros_like(values)


def encode(values: np.ndarray) -> np.ndarray:
    """(n,) floating-point values to their uint8 payload."""
    return np.ascontiguousarray(values).view(np.uint8)


def decode(payload: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The payload of an array of `like`'s type and length, back to values."""
    return payload.view(like.dtype)
