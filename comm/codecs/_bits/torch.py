"""Packing in torch, by parts; whole bytes of words are looked up."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import _bits
from suite.comm.codecs._parts.torch import by_parts, is_on_cpu


def allocate_words(like: Tensor, bits: int) -> Tensor:
    """An array for the words of (n,) values in whole groups, (groups, group); words beyond the values are zero."""
    group = _bits.count_words(bits)
    words = like.new_empty(-(-len(like) // group) * group, dtype=torch.uint8)
    words[len(like) :] = 0
    return words.view(-1, group)


def pack_bits(packed: Tensor, words: Tensor) -> None:
    """(groups, group) words to the bytes of a payload."""
    by_parts(_pack, packed.view(len(words), -1), words)


def _pack(packed: Tensor, words: Tensor) -> None:
    """Pairs of words to one and pairs of these to one, where that comes out."""
    bits = 8 * packed.shape[1] // words.shape[1]
    if 8 % bits:
        packed.copy_(_bits.pack_bits(torch, words, bits).view(packed.shape))
        return
    while bits < 8:
        pairs = words.view(-1).view(torch.int16)
        words, bits = (pairs | (pairs >> (8 - bits))).to(torch.uint8), 2 * bits
    packed.copy_(words.view(packed.shape))


def expand_table(table: Tensor, bits: int) -> Tensor:
    """Return the table entries of the words in each byte, (256, 8 / bits)."""
    every = torch.arange(256, dtype=torch.uint8, device=table.device)
    return table[_bits.unpack_bits(torch, every, bits).int()].view(256, -1)


def read_entries(packed: Tensor, table: Tensor, bits: int, count: int) -> Tensor:
    """Read the entries of the (2**bits,) table that `count` packed words name."""
    if 8 % bits:
        whole = bits * _bits.count_words(bits) // 8
        packed = _bits.unpack_bits(torch, functional.pad(packed, (0, -len(packed) % whole)), bits)
    elif bits < 8:
        table = expand_table(table, bits)
    values = table.new_empty(len(packed), *table.shape[1:])
    by_parts(_look_up, values, packed, constants=(table,))
    return values.view(-1)[:count]


def _look_up(values: Tensor, packed: Tensor, table: Tensor) -> None:
    if table.ndim > 1 and is_on_cpu(table):  # NumPy copies rows two to three times as fast
        np.take(table.numpy(), packed.numpy(), axis=0, out=values.numpy(), mode="clip")
    else:
        torch.index_select(table, 0, packed.int(), out=values)
