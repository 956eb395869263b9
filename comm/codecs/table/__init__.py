"""N bits a value: its sign, and which of 2^(N-1) magnitudes is nearest; these are percentiles of the data itself.

Magnitude k of 1 … 2^(N-1) is the 99k/2^(N-1)-th percentile of |values|, found anew for each array and sent with it.
This is our reading of a poster (Oyama et al., AdaPrec), which has no more than: percentiles 99k/2^(N-1), k = 1 …
2^(N-1), computed dynamically, to which values are rounded. Whose percentiles, what becomes of signs, and whether zero
is in the table, it does not say. In this reading zero is not, what lies above the 99th percentile is clipped, and
table-1, which makes every value plus or minus the 99th percentile, multiplies the norm: 2.6 times for normally
distributed values.

A percentile is one of the values, the first that so many percent are not above. The payload is the magnitudes, float32
in rising order, then words of N bits, the sign in the highest, packed as in `comm/codecs/_bits.py`. A value goes to the
upper of two magnitudes where it is above their middle (rounded to float32). Magnitudes below 2**-120 count as zero; an
infinity or a NaN anywhere makes the whole array NaNs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.comm.codecs import _bits
from suite.comm.codecs._codec import Codec, Draw
from suite.contract import UserError

SUMMARY = "a sign and the nearest of 2^(N-1) percentiles of the magnitudes, recomputed each time"
CITATION = "Oyama et al., AdaPrec (poster), table-N; our reading"
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # bits of float32
TINY = (127 - 120) << 23  # of 2**-120
SIGN = -(2**31)


@dataclass(frozen=True)
class Table(Codec):
    """The specification in NumPy.

    Attributes:
        bits: N, 1 to 8.
        percentiles: of which values: `sampled` (every k-th, 1 % of them but at least 1,024) or `exact` (of all).
    """

    bits: int = 8
    percentiles: str = "sampled"

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise UserError(f"codec table: bits={self.bits}; type comm.codec.bits=8, or 1 to 7")
        if self.percentiles not in ("sampled", "exact"):
            raise UserError(
                f"codec table: percentiles={self.percentiles}; type comm.codec.percentiles=sampled, or exact"
            )

    @property
    def size(self) -> int:
        """How many magnitudes there are."""
        return 2 ** (self.bits - 1)

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """N bits a value in whole bytes, and four bytes a magnitude."""
        return 4 * self.size + -(-self.bits * count // 8)

    def stride(self, count: int) -> int:
        """Every how many values one is looked at."""
        return max(1, min(100, count // 1024)) if self.percentiles == "sampled" else 1

    def ranks(self, count: int) -> list[int]:
        """Which of so many values in rising order are the magnitudes."""
        return [-(-99 * k * count // (100 * self.size)) - 1 for k in range(1, self.size + 1)]

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half the gap between the magnitudes around a value; its distance from the nearest outside the table."""
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
        words = np.pad(self.words(bits, numbers).astype(np.uint8), (0, -len(bits) % _bits.group(self.bits)))
        packed = _bits.pack(np, words, self.bits)
        return np.concatenate([table.astype("<i4").view(np.uint8), packed])[: self.nbytes(len(values))]

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """The payload back to values."""
        table, packed = payload[: 4 * self.size].view("<i4").astype(np.int32), payload[4 * self.size :]
        whole = self.bits * _bits.group(self.bits) // 8
        words = _bits.unpack(np, np.pad(packed, (0, -len(packed) % whole)), self.bits)[: len(like)]
        return np.concatenate([table, table | SIGN])[words].view(np.float32).astype(like.dtype)

    def find(self, magnitudes: np.ndarray) -> np.ndarray:
        """The table of an array, from its magnitudes' bits."""
        return self.table(np, magnitudes.max(), np.sort(magnitudes[:: self.stride(len(magnitudes))]))

    def table(self, xp: Any, largest: Any, ordered: Any) -> Any:
        """The magnitudes' bits; `xp` is `numpy`, `torch` or `jax.numpy`.

        Args:
            xp: the arrays' library.
            largest: bits of the largest magnitude of all.
            ordered: bits of the magnitudes that are looked at, in rising order; at least one.
        """
        found = xp.clip(ordered[xp.asarray(self.ranks(len(ordered)))], 0, INFINITY - 1)
        return xp.where(largest < INFINITY, xp.where(found < TINY, 0, found), NAN)

    def middles(self, xp: Any, table: Any) -> Any:
        """Bits of the middles between magnitudes; halved before they are added, so that no sum overflows."""
        half = table.view(xp.float32) * 0.5
        return (half[:-1] + half[1:]).view(xp.int32)

    def words(self, bits: Any, numbers: Any) -> Any:
        """A sign above the number of a magnitude, int32."""
        return numbers | (((bits >> 31) & 1) << (self.bits - 1))


make = Table
