"""The codec in torch."""

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import int8
from suite.comm.codecs._codec import Draw


class Int8(int8.Int8):
    """int8 in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        rows = self._rows(values.float())
        scales = self.scales(torch, rows)
        numbers = self.numbers(torch, rows, scales, self._rows(draw(len(values))) if self.draws and draw else None)
        numbers = numbers.to(torch.int8).view(-1)[: len(values)]
        return torch.cat([scales.view(torch.uint8), numbers.view(torch.uint8)])

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        head = 4 * self.blocks(len(like))
        scales, numbers = payload[:head].clone().view(torch.float32), payload[head:].view(torch.int8)
        return (numbers.float() * scales.repeat_interleave(self.block)[: len(like)]).to(like.dtype)

    def _rows(self, values: Tensor) -> Tensor:
        return functional.pad(values, (0, -len(values) % self.block)).view(-1, self.block)


make = Int8
