"""Integers from -127 to 127 times a scale, with one scale for each block of values.

The payload is the float32 scales, then the numbers. A scale is the block's largest magnitude over 127, rounded up to 17
bits of precision: a number times its scale is then exact, and a fused multiply-add cannot change a sum. The
largest scale is rounded down, so that nothing overflows. A block whose values are all below 2**-90 becomes zeros; one
that holds an infinity or a NaN becomes NaNs. Values are multiplied by their scale's reciprocal: XLA makes that of
quotients in any case, and then one value in some 60,000 would be rounded another way than in NumPy.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from suite.comm.codecs._codec import Codec, Draw
from suite.contract import UserError
from suite.declared import Declared, setting

SUMMARY = "8-bit integers with a float32 scale for each block"
CITATION = "Dettmers 2016, arXiv:1511.04561; Alistarh et al. 2017, arXiv:1610.02132 (stochastic rounding)"
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # bits of float32
TINY = (127 - 90) << 23  # of 2**-90
LARGEST = 0x7C010200  # of the largest float32 over 127, rounded down to 17 bits of precision
INVERSE = float(np.float32(1 / 127))
STEPS = 2.0**16  # of stochastic rounding: a product has some 17 bits behind the point, and integers add up exactly


class Settings(Declared):
    """block: Dettmers 2016 uses one scale for an array; smaller blocks follow its layers' spread."""

    block: int = setting(512, "values that share a scale", at_least=1)
    rounding: Literal["nearest", "stochastic"] = setting("nearest", "stochastic: without bias")


DEFAULTS = Settings()


@dataclass(frozen=True)
class Int8(Codec):
    """Specification in NumPy.

    Attributes:
        block: values that share a scale.
        rounding: `nearest` (ties to even) or `stochastic` (up with the probability of what is cut off).
    """

    block: int = DEFAULTS.block
    rounding: str = DEFAULTS.rounding

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block < 1:
            raise UserError(f"codec int8: block={self.block}; set comm.codec.block=512")
        if self.rounding not in ("nearest", "stochastic"):
            raise UserError(f"codec int8: rounding={self.rounding}; set comm.codec.rounding=nearest, or stochastic")

    @property
    def draws(self) -> bool:
        """Random numbers are used by stochastic rounding."""
        return self.rounding == "stochastic"

    @property
    def unbiased(self) -> bool:
        """Stochastic rounding is unbiased, up to 2**-17 of a scale by which its steps are rounded."""
        return self.rounding == "stochastic"

    def blocks(self, count: int) -> int:
        """Number of blocks of `count` values."""
        return -(-count // self.block)

    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes: one for each value, and four for each block."""
        return count + 4 * self.blocks(count)

    def bound(self, values: np.ndarray) -> np.ndarray:
        """Half a scale, or a whole one under stochastic rounding; the product's rounding adds 2**-16 of it.

        Infinite in a block with an infinity or a NaN.
        """
        scales = self.scales(np, self._rows(values)).repeat(self.block)[: len(values)].astype(np.float64)
        step = (1.0 if self.draws else 0.5) + 2.0**-16
        bounds = np.where(scales > 0, scales * step, np.abs(values))
        return np.where(np.isnan(scales), np.inf, bounds).astype(values.dtype)

    def encode(self, values: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """(n,) values to their payload."""
        rows = self._rows(values)
        scales = self.scales(np, rows)
        draws = self._rows(draw(len(values))) if self.draws and draw else None
        numbers = self.numbers(np, rows, scales, draws)
        numbers = numbers.astype(np.int8).reshape(-1)[: len(values)]
        return np.concatenate([scales.astype("<f4").view(np.uint8), numbers.view(np.uint8)])

    def decode(self, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Decode the payload to values."""
        head = 4 * self.blocks(len(like))
        scales, numbers = payload[:head].view("<f4").astype(np.float32), payload[head:].view(np.int8)
        return (self._rows(numbers) * scales[:, None]).reshape(-1)[: len(like)].astype(like.dtype)

    def _rows(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.pad(values.astype(np.float32), (0, -len(values) % self.block)).reshape(-1, self.block)

    def scales(self, xp: Any, rows: Any) -> Any:
        """Return the scales of (blocks, block) float32 values; `xp` is `numpy`, `torch` or `jax.numpy`."""
        largest = xp.amax(xp.abs(rows), 1).view(xp.int32) & MAGNITUDE
        scale = (largest.view(xp.float32) * INVERSE).view(xp.int32)
        scale = xp.clip((scale | 0x7F) + 1, 0, LARGEST)
        scale = xp.where(largest < TINY, 0, scale)
        return xp.where(largest < INFINITY, scale, NAN).view(xp.float32)

    def numbers(self, xp: Any, rows: Any, scales: Any, draws: Any) -> Any:
        """(blocks, block) float32 values to integers; `draws` are as many uniform numbers, or None."""
        usable = (scales > 0)[:, None]
        quotients = xp.where(usable, rows, 0.0) * (1.0 / xp.where(usable, scales[:, None], 1.0))
        return xp.clip(self.rounded(xp, quotients, draws), -127, 127)

    def rounded(self, xp: Any, quotients: Any, draws: Any) -> Any:
        """Values in units of their scale to integers; with draws, in steps of 2**-16 that are added as integers."""
        if draws is None:
            return xp.round(quotients)
        steps, drawn = xp.round(quotients * STEPS), xp.floor(draws * STEPS)
        return (xp.asarray(steps, dtype=xp.int32) + xp.asarray(drawn, dtype=xp.int32)) >> 16


make = Int8
