"""Small floating-point numbers of one or two bytes: sign, `exponent` and `mantissa` bits as in IEEE 754.

Subnormals, infinities and NaNs are as in IEEE 754; rounding is to nearest, ties to even. Finite values beyond the
largest finite number are clipped to it. With `scale=absmax`, values are first divided by a power of two, the scale,
such that the largest finite value just fits. The payload is the scale as a float32, then the words. The scale has a
lower limit, so that no word means a subnormal of float32: smaller values become zero. Everything is integer arithmetic
on the bits of float32, because the frameworks' casts differ in overflow. With exponent=5, mantissa=10 and no scale, the
words are those of float16, except for overflow. The codec bfloat16 has 8 and 7 bits.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from suite.comm.codecs._codec import Codec, Draw
from suite.contract import UserError
from suite.declared import Declared, setting

SUMMARY = "floating-point numbers of 8 or 16 bits with configurable exponent and mantissa"
CITATION = "IEEE 754-2019, section 3; Micikevicius et al. 2022, arXiv:2209.05433 (8 bits)"
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000  # bits of float32: all except the sign; infinity


class Settings(Declared):
    """1 + 5 + 2 bits: our choice for the 8-bit float of AdaPrec's poster."""

    exponent: int = setting(5, "exponent bits", at_least=2, at_most=7)
    mantissa: int = setting(2, "mantissa bits; with sign and exponent, 8 or 16 bits in all", at_least=1, at_most=13)
    scale: Literal["absmax", "none"] = setting("absmax", "absmax: a power of two for each array")


DEFAULTS = Settings()


@dataclass(frozen=True)
class MiniFloat(Codec):
    """Specification in NumPy.

    Attributes:
        exponent: number of exponent bits, 2 to 7.
        mantissa: number of mantissa bits; with the sign and the exponent, 8 or 16 bits in all.
        scale: `absmax` (a power of two for each array) or `none`.
    """

    exponent: int = DEFAULTS.exponent
    mantissa: int = DEFAULTS.mantissa
    scale: str = DEFAULTS.scale

    def __post_init__(self) -> None:
        super().__post_init__()
        e, m = self.exponent, self.mantissa
        if 1 + e + m not in (8, 16) or not 2 <= e <= 7 or m < 1:
            raise UserError(
                f"codec minifloat: a sign, exponent={e} and mantissa={m} bits; they must be 8 or 16 bits in all, with "
                "an exponent of 2 to 7; set for example comm.codec.exponent=4 comm.codec.mantissa=3"
            )
        if self.scale not in ("absmax", "none"):
            raise UserError(f"codec minifloat: scale={self.scale}; set comm.codec.scale=absmax, or none")

    @property
    def width(self) -> int:
        """Bytes of a word."""
        return (1 + self.exponent + self.mantissa) // 8

    @property
    def header(self) -> int:
        """Bytes of the scale."""
        return 4 if self.scale == "absmax" else 0

    @property
    def bias(self) -> int:
        """Bias of the exponent; also the exponent of the largest finite number."""
        return 2 ** (self.exponent - 1) - 1

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes: four for the scale, if there is one, and one or two for each value."""
        return self.header + self.width * count

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half a unit in the last place, for normal and subnormal numbers; beyond the largest number, the part cut off.

        Values beyond the largest float32 have no bound (inf).
        """
        wide = np.abs(values.astype(np.float64))
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        bits = single.view(np.int32)
        power = int(self.power(np, self.finite(np, bits).max(initial=0))) if self.header else 0
        unit = 2.0 ** (power - self.bias - self.mantissa)
        most = (2.0 - 2.0**-self.mantissa) * 2.0 ** min(power + self.bias, 127)
        bounds = np.maximum(np.maximum(wide * 2.0 ** -(self.mantissa + 1), unit), wide - most)
        bounds = bounds * (1.0 + 2.0**-23)  # the rounding of the bounds
        return np.where(np.isfinite(single), bounds, np.inf).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        with np.errstate(over="ignore"):
            bits = values.astype(np.float32).view(np.int32)
        power = self.power(np, self.finite(np, bits).max(initial=0)) if self.header else 0
        words = self.words(np, bits, power).astype(f"<u{self.width}").view(np.uint8)
        return np.concatenate([np.array([(power + 127) << 23], "<i4").view(np.uint8)[: self.header], words])

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        scale = payload[: self.header].view("<f4")[0] if self.header else 1.0
        words = payload[self.header :].view(f"<u{self.width}").astype(np.int32)
        with np.errstate(over="ignore"):  # to infinities
            return self.values(np, words, scale).astype(like.dtype)

    def finite(self, xp: Any, bits: Any) -> Any:
        """float32 bits (int32) to those of magnitudes, clipped to the largest with `mantissa` bits; 0 if not finite."""
        magnitude = bits & MAGNITUDE
        return xp.where(magnitude < INFINITY, xp.clip(magnitude, 0, INFINITY - (1 << (23 - self.mantissa))), 0)

    def power(self, xp: Any, largest: Any) -> Any:
        """Return the scale's exponent, from the largest of `finite`, such that this value rounds to a finite word."""
        rounded = (largest + (1 << (22 - self.mantissa))) >> 23
        return xp.clip(rounded - (127 + self.bias), self.bias + self.mantissa - 127, None)

    def words(self, xp: Any, bits: Any, power: Any) -> Any:
        """float32 bits to words, both int32; `xp` is `numpy`, `torch` or `jax.numpy`."""
        m, top = self.mantissa, (2**self.exponent - 1) << self.mantissa  # infinity
        finite, magnitude = self.finite(xp, bits), bits & MAGNITUDE
        field = finite >> 23
        significand = (finite & 0x7FFFFF) | xp.where(field > 0, 0x800000, 0)
        place = (
            field + (self.bias - 127) - power
        )  # the word's exponent bits; below 1 for subnormals, which drop more bits
        drop = xp.clip((24 - m) - place, 23 - m, 25)
        rounded = (significand + ((1 << (drop - 1)) - 1) + ((significand >> drop) & 1)) >> drop
        word = xp.clip(rounded + ((xp.clip(place, 1, None) - 1) << m), 0, top - 1)
        special = xp.where(magnitude > INFINITY, top + (1 << (m - 1)), top)
        return xp.where(magnitude < INFINITY, word, special) | (((bits >> 31) & 1) << (self.exponent + m))

    def values(self, xp: Any, words: Any, scale: Any) -> Any:
        """int32 words to float32. Each operation is exact, so that XLA may fuse products with sums."""
        m, top = self.mantissa, 2**self.exponent - 1
        magnitude = words & ((1 << (self.exponent + m)) - 1)
        raised = (magnitude << (23 - m)) + ((127 - self.bias) << 23)
        small = (raised + (1 << 23)).view(xp.float32) - 2.0 ** (1 - self.bias)  # 1.xx less 1, for subnormals
        numbers = xp.where(magnitude >> m > 0, raised.view(xp.float32), small) * scale
        special = ((magnitude << (23 - m)) | INFINITY).view(xp.float32)
        numbers = xp.where(magnitude >> m == top, special, numbers).view(xp.int32)
        return (numbers | (((words >> (self.exponent + m)) & 1) << 31)).view(xp.float32)


make = MiniFloat
