"""The upper half of a float32, rounded to nearest, ties to even."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from suite.comm.codecs._codec import Codec, Draw

SUMMARY = "the upper half of a float32, rounded to nearest: 8 exponent bits, 8 bits of precision"
CITATION = "Kalamkar et al. 2019, arXiv:1905.12322"


@dataclass(frozen=True)
class BFloat16(Codec):
    """The specification in NumPy."""

    closed = True

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Two bytes a value."""
        return 2 * count

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half a unit in the last place; none where a value becomes infinite."""
        wide = np.abs(values.astype(np.float64))
        spacing = np.maximum(wide * 2.0**-8, 2.0**-134)  # half a unit in the last place, normal and subnormal
        return np.where(wide < 3.3961775e38, spacing, np.inf).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.narrow(values)).view(np.uint8)

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """The payload back to values."""
        return payload.view(ml_dtypes.bfloat16).astype(like.dtype)

    def narrow(self, values: np.ndarray) -> np.ndarray:
        """By way of float32, as every codec takes wider values."""
        return values.astype(np.float32).astype(ml_dtypes.bfloat16)


make = BFloat16
