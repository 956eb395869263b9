"""Codec in torch."""

import torch
from torch import Tensor

from suite.comm.codecs import float32
from suite.comm.codecs._codec import Draw


class Float32(float32.Float32):
    """float32 in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        return values.contiguous().view(torch.uint8)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        return payload.view(like.dtype)


make = Float32
