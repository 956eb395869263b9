"""Codec in torch."""

import torch
from torch import Tensor

from suite.comm.codecs import table
from suite.comm.codecs._bits import torch as in_bytes
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._parts.torch import by_parts, find_largest, may_look

PREFIX = 15  # last bits of a float32 that are not part of its prefix


class Table(table.Table):
    """table in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        narrow = values.float() if len(values) else values.new_zeros(1).float()
        bits, head = narrow.view(torch.int32), 4 * self.size
        ordered = (bits[:: self.stride(len(bits))] & table.MAGNITUDE).sort().values
        places = torch.tensor(self.ranks(len(ordered))).to(bits.device, non_blocking=True)
        entries = self.table(torch, find_largest(narrow), ordered[places])
        middles, words = self.middles(torch, entries), in_bytes.allocate_words(narrow, self.bits)
        flat = words.view(-1)[: len(bits)]
        if self.bits <= (5 if self.compiles else 3):
            by_parts(self.compare, flat, bits, constants=(middles,), compiles=self.compiles)
        else:
            by_parts(self.search, flat, bits, constants=index_middles(middles))
        payload = words.new_empty(head + self.bits * words.numel() // 8)
        payload[:head] = entries.view(torch.uint8)
        in_bytes.pack_bits(payload[head:], words)
        return payload[: self.nbytes(len(values))]

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        entries, packed = payload[: 4 * self.size].clone().view(torch.int32), payload[4 * self.size :]
        values = torch.cat([entries, entries | table.SIGN]).view(torch.float32)
        return in_bytes.read_entries(packed, values, self.bits, len(like)).to(like.dtype)

    def compare(self, words: Tensor, bits: Tensor, middles: Tensor) -> None:
        """float32 bits to words, by comparison with every middle."""
        magnitudes, numbers = bits & table.MAGNITUDE, torch.zeros_like(bits)
        for middle in range(self.size - 1):
            numbers += magnitudes > middles[middle]
        words.copy_(self.words(bits, numbers))

    def search(self, words: Tensor, bits: Tensor, middles: Tensor, below: Tensor | None = None) -> None:
        """float32 bits to words, by torch's search, or with `below` by a faster one (see `index_middles`)."""
        magnitudes = bits & table.MAGNITUDE
        if below is None:
            numbers = torch.bucketize(magnitudes, middles, out_int32=True)
        else:
            numbers = torch.index_select(below, 0, magnitudes >> PREFIX)
            numbers += magnitudes > torch.index_select(middles, 0, numbers)
        words.copy_(self.words(bits, numbers))


def index_middles(middles: Tensor) -> tuple[Tensor, ...]:
    """Return the constants of `Table.search`.

    The first is the middles, then a number above all of them. The second is the number of middles below each prefix, so
    that one more comparison finds the word. If two middles have the same prefix, or may have it on a device for which
    the host would wait, only the middles are returned.
    """
    if not may_look(middles):
        return (middles,)
    counts = torch.bincount(middles >> PREFIX, minlength=2 ** (31 - PREFIX))
    if counts.amax() > 1:
        return (middles,)
    return torch.cat([middles, middles.new_full((1,), 2**31 - 1)]), (counts.cumsum(0) - counts).int()


make = Table
