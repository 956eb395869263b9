"""Packing of 1- to 8-bit words into bytes, first word in the lowest bits; shared by NumPy, torch and jax.

Words are taken in groups that fill whole bytes: eight of 3 bits fill three, two of 4 bits fill one.
"""

import math
from typing import Any


def count_words(bits: int) -> int:
    """How many words of so many bits fill whole bytes."""
    return 8 // math.gcd(bits, 8)


def pack_bits(xp: Any, words: Any, bits: int) -> Any:
    """uint8 words below 2**bits, a multiple of `count_words(bits)` of them, to bytes; `xp` has `stack`."""
    columns = words.reshape(-1, count_words(bits))
    joined = []
    for byte in range(bits * count_words(bits) // 8):
        shifts = [number * bits - 8 * byte for number in range(count_words(bits))]
        parts = [
            columns[:, number] << shift if shift >= 0 else columns[:, number] >> -shift
            for number, shift in enumerate(shifts)
            if -bits < shift < 8
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole | part
        joined.append(whole)
    return xp.stack(joined, 1).reshape(-1)


def unpack_bits(xp: Any, packed: Any, bits: int) -> Any:
    """Invert `pack_bits`."""
    columns = packed.reshape(-1, bits * count_words(bits) // 8)
    words = []
    for number in range(count_words(bits)):
        byte, shift = divmod(number * bits, 8)
        word = columns[:, byte] >> shift
        if shift + bits > 8:
            word = word | (columns[:, byte + 1] << (8 - shift))
        words.append(word & (2**bits - 1))
    return xp.stack(words, 1).reshape(-1)
