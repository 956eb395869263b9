"""N bits per value: its sign and the nearest of 2^(N-1) magnitudes, which are percentiles of the array.

Magnitude k of 1 … 2^(N-1) is the 99k/2^(N-1)-th percentile of |values|, computed for each array and sent with it.
This is our reading of a poster (Oyama et al., AdaPrec). It states only that values are rounded to the percentiles
99k/2^(N-1), k = 1 … 2^(N-1), which are computed dynamically. It does not state whose percentiles they are, how signs
are treated, or whether zero is in the table. In this reading, zero is not in the table, and values above the 99th
percentile are clipped. Table-1 makes every value plus or minus the 99th percentile, which multiplies the norm by 2.6
for normally distributed values.

The p-th percentile is the smallest value that at least p percent of the values do not exceed. The payload is the
magnitudes, float32 in rising order, then words of N bits, the sign in the highest bit, packed by `comm/codecs/_bits`.
A value is rounded to the upper of two magnitudes if it is above their middle (rounded to float32). Magnitudes below
2**-120 become zero. An infinity or a NaN in an array makes the whole array NaN.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from suite.comm.codecs import _bits
from suite.comm.codecs._codec import Codec, Draw
from suite.contract import UserError
from suite.declared import Declared, setting

SUMMARY = "a sign and the nearest of 2^(N-1) percentiles of the magnitudes, recomputed for each array"
CITATION = "Oyama et al., AdaPrec (poster), table-N; our reading"
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # bits of float32
TINY = (127 - 120) << 23  # of 2**-120
SIGN = -(2**31)


class Settings(Declared):
    """bits: the largest table of AdaPrec's poster."""

    bits: int = setting(8, "bits of a value, its sign included", at_least=1, at_most=8)
    percentiles: Literal["sampled", "exact"] = setting(
        "sampled", "from 1 % of the values but at least 1,024, or from all"
    )


DEFAULTS = Settings()


@dataclass(frozen=True)
class Table(Codec):
    """Specification in NumPy.

    Attributes:
        bits: N, 1 to 8.
        percentiles: `sampled`: from every k-th value, 1 % of them but at least 1,024; `exact`: from all values.
    """

    bits: int = DEFAULTS.bits
    percentiles: str = DEFAULTS.percentiles

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.bits <= 8:
            raise UserError(f"codec table: bits={self.bits}; set comm.codec.bits=8, or 1 to 7")
        if self.percentiles not in ("sampled", "exact"):
            raise UserError(
                f"codec table: percentiles={self.percentiles}; set comm.codec.percentiles=sampled, or exact"
            )

    @property
    def size(self) -> int:
        """Number of magnitudes."""
        return 2 ** (self.bits - 1)

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes: N bits for each value, rounded up, and four bytes for each magnitude."""
        return 4 * self.size + -(-self.bits * count // 8)

    def stride(self, count: int) -> int:
        """Return the stride of the values from which percentiles are computed."""
        return max(1, min(100, count // 1024)) if self.percentiles == "sampled" else 1

    def ranks(self, count: int) -> list[int]:
        """Indices of the magnitudes among `count` values in rising order."""
        return [-(-99 * k * count // (100 * self.size)) - 1 for k in range(1, self.size + 1)]

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half the gap between the magnitudes around a value; outside the table, the distance from the nearest one."""
        if not len(values):
            return values
        table = self.find(values.astype(np.float32).view(np.int32) & MAGNITUDE).view(np.float32).astype(np.float64)
        wide = np.abs(values.astype(np.float64))
        above = table.searchsorted(wide).clip(1, max(1, self.size - 1))
        gap = table[above] - table[above - 1] if self.size > 1 else 0.0
        outside = np.maximum(table[0] - wide, wide - table[-1])
        rounding = 2.0**-23 * np.maximum(wide, table[-1])  # of middles, and of the bound itself
        with np.errstate(over="ignore"):
            return (np.maximum(gap / 2, outside) + rounding).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        with np.errstate(over="ignore"):
            bits = (values.astype(np.float32) if len(values) else np.zeros(1, np.float32)).view(np.int32)
        table = self.find(bits & MAGNITUDE)
        numbers = np.searchsorted(self.middles(np, table), bits & MAGNITUDE).astype(np.int32)
        words = np.pad(self.words(bits, numbers).astype(np.uint8), (0, -len(bits) % _bits.count_words(self.bits)))
        packed = _bits.pack_bits(np, words, self.bits)
        return np.concatenate([table.astype("<i4").view(np.uint8), packed])[: self.nbytes(len(values))]

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        table, packed = payload[: 4 * self.size].view("<i4").astype(np.int32), payload[4 * self.size :]
        whole = self.bits * _bits.count_words(self.bits) // 8
        words = _bits.unpack_bits(np, np.pad(packed, (0, -len(packed) % whole)), self.bits)[: len(like)]
        return np.concatenate([table, table | SIGN])[words].view(np.float32).astype(like.dtype)

    def find(self, magnitudes: np.ndarray) -> np.ndarray:
        """Find the table of an array, from the bits of its magnitudes."""
        ordered = np.sort(magnitudes[:: self.stride(len(magnitudes))])
        return self.table(np, magnitudes.max(), ordered[self.ranks(len(ordered))])

    def table(self, xp: Any, largest: Any, chosen: Any) -> Any:
        """Return the bits of the table's magnitudes, (size,) int32.

        Args:
            xp: `numpy`, `torch` or `jax.numpy`.
            largest: bits of the largest magnitude in the array.
            chosen: bits of the sampled magnitudes in rising order that `ranks` chooses.
        """
        chosen = xp.clip(chosen, 0, INFINITY - 1)
        return xp.where(largest < INFINITY, xp.where(chosen < TINY, 0, chosen), NAN)

    def middles(self, xp: Any, table: Any) -> Any:
        """Bits of the middles between neighbouring magnitudes, halved before the addition so that no sum overflows."""
        half = table.view(xp.float32) * 0.5
        return (half[:-1] + half[1:]).view(xp.int32)

    def words(self, bits: Any, numbers: Any) -> Any:
        """Return the words, int32: a magnitude's number, and the sign in the bit above."""
        return numbers | (((bits >> 31) & 1) << (self.bits - 1))


make = Table
