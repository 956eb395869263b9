"""The codec in torch, in int32: shifts to the right are masked, because torch shifts signed integers' sign in."""

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import float21
from suite.comm.codecs._codec import Draw


class Float21(float21.Float21):
    """float21 in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        padded = functional.pad(values.float(), (0, -len(values) % 3))
        return pack(padded.view(torch.int32)).view(torch.uint8)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        return unpack(payload.view(torch.int32)).view(torch.float32)[: len(like)].to(like.dtype)


def pack(bits: Tensor) -> Tensor:
    """(3 m,) float32 bits to (2 m,) words."""
    word = ((bits + (0x3FF + ((bits >> 11) & 1))) >> 11) & 0x1FFFFF
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    a, b, c = torch.where(nan, ((bits >> 11) & 0x1FFFFF) | 0x800, word).chunk(3)
    return torch.cat([a | (b << 21), (b >> 11) | (c << 10)])


def unpack(words: Tensor) -> Tensor:
    """(2 m,) words to (3 m,) float32 bits."""
    low, high = words.chunk(2)
    middle = ((low >> 10) & 0x3FF800) | (high << 22)
    return torch.cat([low << 11, middle & ~0x7FF, (high << 1) & ~0x7FF])


make = Float21
