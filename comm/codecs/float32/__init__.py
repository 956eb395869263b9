"""No compression: the array's bytes, little-endian; float32 in ordinary runs, float64 in double precision."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.comm.codecs._codec import Codec, Draw

SUMMARY = "no compression: the values' own bytes"
CITATION = ""


@dataclass(frozen=True)
class Float32(Codec):
    """Specification in NumPy."""

    closed = True
    unbiased = True

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes of `count` values of `itemsize` bytes."""
        return count * itemsize

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Nothing is lost."""
        return np.zeros_like(values)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        return np.ascontiguousarray(values).view(np.uint8)

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        return payload.view(like.dtype)

    def narrow(self, values: Any) -> Any:
        """Return the values themselves."""
        return values


make = Float32
