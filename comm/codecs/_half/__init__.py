"""Shared code of float16 and bfloat16: values rounded through float32 to a 16-bit type of every framework."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from suite.comm.codecs._codec import Codec, Draw


@dataclass(frozen=True)
class Half(Codec):
    """Specification in NumPy.

    Attributes:
        kind: NumPy's type; a backend's half has that of its framework.
        precision: bits, the leading one counted.
        least: exponent of half the spacing among subnormals.
        most: what is as large as that becomes infinite.
    """

    closed = True
    kind: ClassVar[Any]
    precision: ClassVar[int]
    least: ClassVar[int]
    most: ClassVar[float]

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Two bytes a value."""
        return 2 * count

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half a unit in the last place, normal and subnormal; none where a value becomes infinite."""
        wide = np.abs(values.astype(np.float64))
        spacing = np.maximum(wide * 2.0**-self.precision, 2.0**self.least)
        return np.where(wide < self.most, spacing, np.inf).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.narrow(values)).view(np.uint8)

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        return payload.view(self.kind).astype(like.dtype)

    def narrow(self, values: np.ndarray) -> np.ndarray:
        """By way of float32, as every codec takes wider values."""
        return values.astype(np.float32).astype(self.kind)
