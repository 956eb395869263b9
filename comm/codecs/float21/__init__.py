"""21 bits: a float32's sign, its 8 exponent bits and the upper 12 of its mantissa, rounded to nearest, ties to even.

Three words share a little-endian pair of uint32. The values are cut into three thirds a, b, c (padded with zeros to
equal length m): the payload is m words `a | b << 21` and then m words `b >> 11 | c << 10`, so that packing reads and
writes whole arrays. A NaN stays a NaN (its quiet bit is set). A value that rounds past the largest float32 becomes
infinite.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.comm.codecs._codec import Codec, Draw

SUMMARY = "1 sign, 8 exponent and 12 mantissa bits, three values in 8 bytes"
CITATION = "Osawa et al. 2020, arXiv:2002.06015, section 5.2"


def round_bits(xp: Any, bits: Any) -> Any:
    """float32 bits (uint32) to 21-bit words. `xp` is `numpy` or `jax.numpy`."""
    u = xp.uint32
    rounded = (bits + u(0x3FF) + ((bits >> u(11)) & u(1))) >> u(11)
    nan = (bits & u(0x7FFFFFFF)) > u(0x7F800000)
    return xp.where(nan, (bits >> u(11)) | u(0x800), rounded)


def pack_thirds(xp: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Three arrays of 21-bit words to two arrays of 32-bit words; `<<` drops the bits of `b` that do not fit."""
    u = xp.uint32
    return a | (b << u(21)), (b >> u(11)) | (c << u(10))


def unpack_thirds(xp: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Invert `pack_thirds`; each word is shifted to the upper bits, as in a float32."""
    u = xp.uint32
    upper = u(0xFFFFF800)
    return low << u(11), ((low >> u(10)) | (high << u(22))) & upper, (high << u(1)) & upper


@dataclass(frozen=True)
class Float21(Codec):
    """Specification in NumPy."""

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes: eight for three values."""
        return 8 * -(-count // 3)

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half a unit in the last place, 2**-13 of the value or 2**-139; in float64 half a float32's before it."""
        wide = np.abs(values.astype(np.float64))
        before = np.maximum(wide * 2.0**-24, 2.0**-150) if values.dtype == np.float64 else 0.0
        return np.where(wide < 3.402e38, np.maximum(wide * 2.0**-13, 2.0**-139) + before, np.inf).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        rounded = round_bits(np, np.ascontiguousarray(values, np.float32).view(np.uint32))
        thirds = np.split(np.pad(rounded, (0, -len(rounded) % 3)), 3)
        return np.concatenate(pack_thirds(np, *thirds)).astype("<u4").view(np.uint8)

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        bits = unpack_thirds(np, *np.split(payload.view("<u4").astype(np.uint32), 2))
        return np.concatenate(bits)[: len(like)].view(np.float32).astype(like.dtype)


make = Float21
