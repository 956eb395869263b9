"""The codec in torch."""

from collections.abc import Callable

import torch
from torch import Tensor

from suite.comm.codecs import minifloat
from suite.comm.codecs._codec import Draw

PART = 2**16  # values


class MiniFloat(minifloat.MiniFloat):
    """minifloat in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        bits = values.float().view(torch.int32)
        if not self.header:
            return by_parts(lambda part: self.words(torch, part, 0).to(self._kind), bits).view(torch.uint8)
        power = self.power(torch, self.finite(torch, bits).amax() if len(bits) else bits.new_zeros(()))
        words = by_parts(lambda part: self.words(torch, part, power).to(self._kind), bits)
        return torch.cat([((power + 127) << 23).reshape(1).view(torch.uint8), words.view(torch.uint8)])

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        scale = payload[: self.header].clone().view(torch.float32)[0] if self.header else 1.0
        mask = 2 ** (8 * self.width) - 1  # torch reads 16 bits as signed
        words = payload[self.header :].view(self._kind)
        return by_parts(lambda part: self.values(torch, part.int() & mask, scale), words).to(like.dtype)

    @property
    def _kind(self) -> torch.dtype:
        return torch.uint8 if self.width == 1 else torch.int16


def by_parts(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """An element-wise function of (n,) values: on a CPU in parts that stay in its cache, unless it is compiled."""
    whole = torch.compiler.is_compiling() or values.device.type != "cpu"
    return function(values) if whole else torch.cat([function(part) for part in values.split(PART)])


make = MiniFloat
