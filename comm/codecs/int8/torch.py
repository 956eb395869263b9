"""Codec in torch."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import int8
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._parts.torch import by_parts, may_look


class Int8(int8.Int8):
    """int8 in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        count, head = len(values), 4 * self.blocks(len(values))
        payload = values.new_empty(head + self.blocks(count) * self.block, dtype=torch.uint8)
        scales, numbers = payload[:head].view(torch.float32), payload[head:].view(torch.int8).view(-1, self.block)
        drawn = (self._rows(draw(count)),) if self.draws and draw else ()
        by_parts(self.write, scales, numbers, self._rows(values.float()), *drawn, compiles=self.compiles)
        return payload[: self.nbytes(count)]

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        head = 4 * self.blocks(len(like))
        scales, numbers = payload[:head].clone().view(torch.float32), payload[head:].view(torch.int8)
        values = scales.new_empty(len(scales), self.block)
        by_parts(scale_numbers, values, self._rows(numbers), scales, compiles=self.compiles)
        return values.view(-1)[: len(like)].to(like.dtype)

    def write(self, scales: Tensor, numbers: Tensor, rows: Tensor, draws: Tensor | None = None) -> None:
        """(k, block) float32 values to their scales and whole numbers."""
        scales.copy_(self.scales(torch, rows))
        numbers.copy_(self.numbers(torch, rows, scales, draws))

    def numbers(self, xp: Any, rows: Tensor, scales: Tensor, draws: Tensor | None) -> Tensor:
        """Return the same in fewer passes, where all scales are known to be usable."""
        if not may_look(scales) or not bool((scales > 0).all()):
            return super().numbers(torch, rows, scales, draws)
        return self.rounded(torch, rows * (1.0 / scales)[:, None], draws).clip_(-127, 127)

    def _rows(self, values: Tensor) -> Tensor:
        return functional.pad(values, (0, -len(values) % self.block)).view(-1, self.block)


def scale_numbers(values: Tensor, rows: Tensor, scales: Tensor) -> None:
    """(k, block) whole numbers to values."""
    torch.mul(rows, scales[:, None], out=values)


make = Int8
