"""The codec in torch."""

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import _bits, onebit
from suite.comm.codecs._codec import Draw


class OneBit(onebit.OneBit):
    """onebit in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        narrow = values.float() if len(values) else values.new_zeros(1).float()
        words = functional.pad((narrow.view(torch.int32) < 0).to(torch.uint8), (0, -len(narrow) % 8))
        means = self.means(torch, narrow, len(values), words.sum(dtype=torch.int32)).view(torch.uint8)
        return torch.cat([means, _bits.pack(torch, words, 1)])[: self.nbytes(len(values))]

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        means, words = payload[:8].clone().view(torch.float32), _bits.unpack(torch, payload[8:], 1)[: len(like)]
        return means[words.int()].to(like.dtype)


make = OneBit
