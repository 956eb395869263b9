"""The codec in torch."""

import torch
from torch import Tensor

from suite.comm.codecs import float16
from suite.comm.codecs._codec import Draw


class Float16(float16.Float16):
    """float16 in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        return self.narrow(values).contiguous().view(torch.uint8)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        return payload.view(torch.float16).to(like.dtype)

    def narrow(self, values: Tensor) -> Tensor:
        """By way of float32, as every codec takes wider values."""
        return values.float().to(torch.float16)


make = Float16
