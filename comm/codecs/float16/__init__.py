"""IEEE half precision. Above 65,504 it is infinite; below 6.1e-5 the spacing is 6.0e-8."""

from dataclasses import dataclass

import numpy as np

from suite.comm.codecs._codec import Codec, Draw

SUMMARY = "IEEE half precision: 5 exponent bits, 11 bits of precision, largest value 65,504"
CITATION = "IEEE 754-2008, binary16"


@dataclass(frozen=True)
class Float16(Codec):
    """The specification in NumPy."""

    closed = True

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Two bytes a value."""
        return 2 * count

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half a unit in the last place; none where a value becomes infinite."""
        wide = np.abs(values.astype(np.float64))
        spacing = np.maximum(wide * 2.0**-11, 2.0**-25)  # half a unit in the last place, normal and subnormal
        return np.where(wide < 65520.0, spacing, np.inf).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.narrow(values)).view(np.uint8)

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """The payload back to values."""
        return payload.view(np.float16).astype(like.dtype)

    def narrow(self, values: np.ndarray) -> np.ndarray:
        """By way of float32, as every codec takes wider values."""
        return values.astype(np.float32).astype(np.float16)


make = Float16
