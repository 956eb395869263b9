"""Codec in torch."""

import torch
from torch import Tensor

from suite.comm.codecs import minifloat
from suite.comm.codecs._bits import torch as in_bytes
from suite.comm.codecs._codec import Draw
from suite.comm.codecs._parts.torch import by_parts, find_largest, may_look

MANY = 2**15  # values from which on a table of the words of all prefixes (see `look_up`) is worth while


class MiniFloat(minifloat.MiniFloat):
    """minifloat in torch."""

    def encode(self, values: Tensor, draw: Draw | None = None) -> Tensor:
        """(n,) values to their payload."""
        narrow = values.float()
        bits, power = narrow.view(torch.int32), torch.zeros((), dtype=torch.int32, device=values.device)
        payload = bits.new_empty(self.nbytes(len(values)), dtype=torch.uint8)
        fits = False
        if self.header:
            most = find_largest(narrow)
            fits = may_look(narrow) and bool(most == self.finite(torch, most))
            if not fits and len(bits):
                most = self.finite(torch, bits).amax()
            power = self.power(torch, most)
            payload[:4] = ((power + 127) << 23).reshape(1).view(torch.uint8)
        words = payload[self.header :].view(self._kind)
        if fits and self._short:  # torch's cast differs only for values that do not fit
            factor = ((127 - power) << 23).view(torch.float32)  # 2 ** -power
            by_parts(cast_values, words.view(torch.float8_e5m2), narrow, constants=(factor,))
        elif self.width == 1 and len(values) >= MANY and not self.compiles:
            prefixes = torch.arange(2 ** (33 - self.rest), dtype=torch.int32, device=values.device)
            table = self.words(torch, ((prefixes >> 1) << self.rest) | (prefixes & 1), power).to(torch.uint8)
            by_parts(self.look_up, words, bits, constants=(table,))
        else:
            by_parts(self.write, words, bits, constants=(power,), compiles=self.compiles)
        return payload

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """Decode the payload to values."""
        scale = payload[: self.header].clone().view(torch.float32)[0] if self.header else payload.new_ones(()).float()
        words = payload[self.header :].view(self._kind)
        if self._short:
            values = words.new_empty(len(words), dtype=torch.float32)
            by_parts(widen_words, values, words, constants=(scale,))
            return values.to(like.dtype)
        if self.width == 1:
            all_words = torch.arange(256, dtype=torch.int32, device=payload.device)
            return in_bytes.read_entries(words, self.values(torch, all_words, scale), 8, len(like)).to(like.dtype)
        values = words.new_empty(len(words), dtype=torch.float32)
        by_parts(self.read, values, words, constants=(scale,), compiles=self.compiles)
        return values.to(like.dtype)

    def write(self, words: Tensor, bits: Tensor, power: Tensor) -> None:
        """float32 bits to words."""
        words.copy_(self.words(torch, bits, power))

    def read(self, values: Tensor, words: Tensor, scale: Tensor) -> None:
        """Words to float32."""
        values.copy_(self.values(torch, words.int() & (2 ** (8 * self.width) - 1), scale))  # 16 bits are read as signed

    def look_up(self, words: Tensor, bits: Tensor, table: Tensor) -> None:
        """float32 bits to words, from a table.

        The index is the bits before the last `rest` bits, then one bit that tells whether any of the last bits is set.
        """
        mask = (1 << self.rest) - 1
        any_set = (bits & mask).add_(mask).bitwise_right_shift_(self.rest)
        prefixes = (bits >> (self.rest - 1)).bitwise_and_(2 ** (33 - self.rest) - 2).bitwise_or_(any_set)
        torch.index_select(table, 0, prefixes, out=words)

    @property
    def rest(self) -> int:
        """Number of last bits of a float32, all below half a unit, whose effect on rounding is whether any is set."""
        return 22 - self.mantissa

    @property
    def _short(self) -> bool:
        """Return whether a word is the high byte of a float16."""
        return (self.exponent, self.mantissa) == (5, 2)

    @property
    def _kind(self) -> torch.dtype:
        return torch.uint8 if self.width == 1 else torch.int16


def cast_values(words: Tensor, values: Tensor, factor: Tensor) -> None:
    """float32 to words of type float8_e5m2."""
    words.copy_(values * factor)


def widen_words(values: Tensor, words: Tensor, scale: Tensor) -> None:
    """High bytes of float16 to float32."""
    values.copy_((words.to(torch.int16) << 8).view(torch.float16)).mul_(scale)


make = MiniFloat
