"""The codec in torch."""

import torch
from torch import Tensor

from suite.comm.codecs import minifloat
from suite.comm.codecs._codec import Draw


class MiniFloat(minifloat.MiniFloat):
    """minifloat in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        bits = values.float().view(torch.int32)
        if not self.header:
            return self.words(torch, bits, 0).to(self._kind).view(torch.uint8)
        power = self.power(torch, self.finite(torch, bits).amax() if len(bits) else bits.new_zeros(()))
        words = self.words(torch, bits, power).to(self._kind)
        return torch.cat([((power + 127) << 23).reshape(1).view(torch.uint8), words.view(torch.uint8)])

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        scale = payload[: self.header].clone().view(torch.float32)[0] if self.header else 1.0
        words = payload[self.header :].view(self._kind).int() & (2 ** (8 * self.width) - 1)
        return self.values(torch, words, scale).to(like.dtype)

    @property
    def _kind(self) -> torch.dtype:
        return torch.uint8 if self.width == 1 else torch.int16


make = MiniFloat
