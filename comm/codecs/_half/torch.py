"""16-bit types in torch."""

import torch
from torch import Tensor

from suite.comm.codecs import _half
from suite.comm.codecs._codec import Draw


class Half(_half.Half):
    """Codec in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        return self.narrow(values).contiguous().view(torch.uint8)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        return payload.view(self.kind).to(like.dtype)

    def narrow(self, values: Tensor) -> Tensor:
        """By way of float32, as every codec takes wider values."""
        return values.float().to(self.kind)
