"""One bit per value, its sign. A value is decoded as the mean of all values with the same sign.

The payload is two float32, the mean of the non-negative values and that of the negative ones (0 where there are none),
then the sign bits packed as in `comm/codecs/_bits.py`; -0.0 counts as negative. Sums are taken in the order of
`comm/codecs/_fold.py`. Denormal values and means count as zero, magnitudes above 2**96 as that (no sum overflows); an
infinity or a NaN makes its side NaN. One bit without error feedback has a large bias: `feedback: true` is part of the
method.
"""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.comm.codecs import _bits
from suite.comm.codecs._codec import Codec, Draw
from suite.comm.codecs._fold import fold_values

SUMMARY = "one sign bit per value, and the mean of the values of each sign"
CITATION = "Seide et al. 2014, doi:10.21437/Interspeech.2014-274, section 3"
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # bits of float32
NORMAL, LARGEST = 1 << 23, (127 + 96) << 23  # of the least normal number and of 2**96
SIGN = -(2**31)


@dataclass(frozen=True)
class OneBit(Codec):
    """Specification in NumPy."""

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes: two float32, and a bit for each value."""
        return 8 + -(-count // 8)

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Return the largest magnitude of the same sign: value and mean both lie between zero and that.

        Infinite where their sum overflows float32.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            narrow, wide = values.astype(np.float32), np.abs(values)
            above, below = self.sums(np, narrow) if len(values) else (0.0, 0.0)
        side = np.signbit(narrow)
        bounds = np.where(side, wide.max(initial=0, where=side), wide.max(initial=0, where=~side))
        return np.where(np.isfinite(np.where(side, below, above)), bounds, np.inf).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32) if len(values) else np.zeros(1, np.float32)
        words = np.pad((narrow.view(np.int32) < 0).astype(np.uint8), (0, -len(narrow) % 8))
        above, below = self.sums(np, narrow)
        means = self.means(np, above, below, len(values), words.sum(dtype=np.int32)).astype("<i4").view(np.uint8)
        return np.concatenate([means, _bits.pack_bits(np, words, 1)])[: self.nbytes(len(values))]

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        means, words = payload[:8].view("<f4"), _bits.unpack_bits(np, payload[8:], 1)[: len(like)]
        return means[words].astype(like.dtype)

    def magnitude(self, xp: Any, values: Any, negative: bool) -> Any:
        """Magnitudes of the values of one sign; 0 for the others. `xp` is `numpy`, `torch` or `jax.numpy`."""
        bits = values.view(xp.int32)
        magnitudes = bits & MAGNITUDE
        magnitudes = xp.where(magnitudes < INFINITY, xp.clip(magnitudes, 0, LARGEST), NAN)
        return xp.where(((bits < 0) == negative) & (magnitudes >= NORMAL), magnitudes, 0).view(xp.float32)

    def sums(self, xp: Any, values: Any) -> tuple[Any, Any]:
        """Sums of the magnitudes of the non-negative and of the negative values; (n,) float32, n at least 1."""
        above = fold_values(xp, values, operator.add, lambda part: self.magnitude(xp, part, False))
        return above, fold_values(xp, values, operator.add, lambda part: self.magnitude(xp, part, True))

    def means(self, xp: Any, above: Any, below: Any, count: int, negatives: Any) -> Any:
        """Bits of the means, from the sums, of `count` values, `negatives` of them negative; (2,)."""
        counts = xp.clip(xp.stack([count - negatives, negatives]), 1, None)
        means = (xp.stack([above, below]) / xp.asarray(counts, dtype=xp.float32)).view(xp.int32) & MAGNITUDE
        means = xp.where(means < NORMAL, 0, xp.where(means < INFINITY, means, NAN))
        return xp.stack([means[0], means[1] | SIGN])


make = OneBit
