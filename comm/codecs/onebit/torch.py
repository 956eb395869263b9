"""Codec in torch."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from suite.comm.codecs import _bits, _fold, onebit
from suite.comm.codecs._bits import torch as in_bytes
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._parts.torch import by_parts, is_on_cpu, may_look

DENORMAL, LARGEST = 2.0**-126 - 2.0**-149, 2.0**96  # the largest denormal number, and what no magnitude exceeds


class OneBit(onebit.OneBit):
    """onebit in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        narrow = (values.float() if len(values) else values.new_zeros(1).float()).contiguous()
        payload, whole = narrow.new_empty(8 + -(-len(narrow) // 8), dtype=torch.uint8), len(narrow) // 8
        bits, packed = narrow.view(torch.int32), payload[8:]
        by_parts(pack_signs, packed[:whole], bits[: 8 * whole].view(-1, 8), compiles=self.compiles)
        if rest := len(narrow) % 8:
            pack_signs(packed[whole:], functional.pad(bits[8 * whole :], (0, 8 - rest))[None])
        means = self.means(torch, *self.sums(torch, narrow), len(values), count_negatives(bits, packed))
        payload[:8] = means.view(torch.uint8)
        return payload[: self.nbytes(len(values))]

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        return in_bytes.read_entries(payload[8:], payload[:8].clone().view(torch.float32), 1, len(like)).to(like.dtype)

    def sums(self, xp: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the magnitudes of the positive and of the negative values, in one pass."""

        def level(combine: Any, transform: Any, parts: Sequence[Tensor]) -> Tensor:
            if parts[0].ndim > 1:
                return _fold.combine_parts(combine, transform, parts)
            totals = parts[0].new_empty(2, len(parts[0]))
            by_parts(add_up, *totals, *parts, compiles=self.compiles and len(parts) == _fold.PARTS)
            return totals

        if not is_on_cpu(values) and not self.compiles:  # a kernel for all parts in place of one for each
            above, below = _fold.fold_values(torch, split_signs(values), operator.add)
        else:
            above, below = _fold.fold_values(torch, values, operator.add, split_signs, level)
        return above, below


SPECIFICATION = onebit.OneBit()


def split_signs(values: Tensor) -> Tensor:
    """(k,) values to the magnitudes of both signs, (2, k)."""
    return torch.stack([SPECIFICATION.magnitude(torch, values, negative) for negative in (False, True)])


def add_up(above: Tensor, below: Tensor, *parts: Tensor) -> None:
    """Parts of equal length to the sums of the magnitudes of both signs."""
    above.zero_()
    below.zero_()
    for part in parts:
        if not may_look(part) or not _finite(part):
            positive, negative = (SPECIFICATION.magnitude(torch, part, side) for side in (False, True))
        else:  # the same in fewer passes
            positive = functional.threshold(part, DENORMAL, 0.0).clamp_max_(LARGEST)
            negative = functional.threshold(part.neg(), DENORMAL, 0.0).clamp_max_(LARGEST)
        above.add_(positive)
        below.add_(negative)


def count_negatives(bits: Tensor, packed: Tensor) -> Tensor:
    """Return how many of some values are negative, from their float32 bits or the bytes of their packed signs."""
    if not may_look(bits):
        return (bits < 0).sum()
    ones = in_bytes.expand_table(torch.arange(2), 1).sum(1)
    return (packed.bincount(minlength=256) * ones).sum()


def _finite(values: Tensor) -> bool:
    least, most = values.aminmax()
    return bool(least > -torch.inf) and bool(most < torch.inf)  # a NaN is neither


def pack_signs(packed: Tensor, bits: Tensor) -> None:
    """float32 bits (k, 8) to a byte for each eight: those of the signs."""
    words = (bits >> 31).to(torch.uint8) & 1
    if torch.compiler.is_compiling():
        packed.copy_(_bits.pack_bits(torch, words, 1))
    else:
        in_bytes.pack_bits(packed, words)


make = OneBit
