"""Codec in torch, in int32: shifts to the right are masked, because torch shifts signed integers' sign in."""

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import float21
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._parts.torch import by_parts, may_look

WORD, UPPER = 0x1FFFFF, ~0x7FF  # the bits of a word, low and where float32 has them


class Float21(float21.Float21):
    """float21 in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        bits, third = values.float().view(torch.int32), -(-len(values) // 3)
        parts = [bits[part * third : (part + 1) * third] for part in range(3)]
        filled = [part if len(part) == third else functional.pad(part, (0, third - len(part))) for part in parts]
        words = bits.new_empty(2, third)
        by_parts(pack_thirds, *words, *filled, compiles=self.compiles)
        return words.view(-1).view(torch.uint8)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        words = payload.view(torch.int32).view(2, -1)
        bits = words.new_empty(3, words.shape[1])
        by_parts(unpack_thirds, *bits, *words, compiles=self.compiles)
        return bits.view(-1).view(torch.float32)[: len(like)].to(like.dtype)


def round_bits(bits: Tensor) -> Tensor:
    """float32 bits to 21-bit words."""
    rounded = (bits >> 11).bitwise_and_(1).add_(bits).add_(0x3FF).bitwise_right_shift_(11)
    if not may_look(bits) or bits.view(torch.float32).amax().isnan():
        nan = (bits & 0x7FFFFFFF) > 0x7F800000
        rounded = torch.where(nan, (bits >> 11) | 0x800, rounded)
    return rounded.bitwise_and_(WORD)


def pack_thirds(low: Tensor, high: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    """Three arrays of float32 bits to two of 32-bit words."""
    second = round_bits(b)
    torch.bitwise_left_shift(second, 21, out=low).bitwise_or_(round_bits(a))
    torch.bitwise_left_shift(round_bits(c), 10, out=high).bitwise_or_(second.bitwise_right_shift_(11))


def unpack_thirds(a: Tensor, b: Tensor, c: Tensor, low: Tensor, high: Tensor) -> None:
    """Invert `pack_thirds`: words where float32 has their bits."""
    torch.bitwise_left_shift(low, 11, out=a)
    torch.bitwise_right_shift(low, 10, out=b).bitwise_and_(WORD << 1).bitwise_or_(high << 22).bitwise_and_(UPPER)
    torch.bitwise_left_shift(high, 1, out=c).bitwise_and_(UPPER)


make = Float21
