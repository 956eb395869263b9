"""Counter-based random numbers. The same code serves NumPy and jax.numpy, so both backends draw the same values.

A draw is a pure function of (seed, step), a name and an index. It changes no state, so order, batch size and the
number of devices do not matter. `suite.stream.torch` has torch's half. The mixer is the 32-bit finalizer of
MurmurHash3 (Appleby, public domain), applied once per word of the key.
"""

import math
import zlib
from typing import Any


def _mix(xp: Any, word: Any) -> Any:
    word = (word ^ (word >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
    word = (word ^ (word >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
    return word ^ (word >> xp.uint32(16))


def bits(xp: Any, key: Any, name: str, index: Any) -> Any:
    """Uniform 32-bit words, shaped like `index`.

    Args:
        xp: `numpy` or `jax.numpy`.
        key: (seed, step), two unsigned integers; may be traced.
        name: the purpose of the numbers, for example a layer's name.
        index: integers, one draw for each; taken modulo 2**32.

    Returns:
        uint32, shaped like `index`.
    """
    word = xp.asarray(index).astype(xp.uint32)
    for part in (zlib.crc32(name.encode()), key[0], key[1]):
        word = _mix(xp, word ^ xp.asarray(part, xp.uint32)) + xp.uint32(0x9E3779B9)
    return _mix(xp, word)


def keep(xp: Any, key: Any, name: str, index: Any, size: int, rate: float) -> Any:
    """Return which elements dropout keeps. Each word of 32 bits decides two elements of a sample.

    Args:
        xp: `numpy` or `jax.numpy`.
        key: (seed, step), two unsigned integers; may be traced.
        name: of the layer.
        index: (N,), the numbers of the samples.
        size: elements of a sample.
        rate: the probability to drop an element, see `count_dropped`.

    Returns:
        (N, size) booleans. Words of 32 bits repeat by chance: two elements in 2**33 have the same draw.
    """
    columns = _mix(xp, xp.arange(1, size // 2 + size % 2 + 1, dtype=xp.uint32))
    words = _mix(xp, bits(xp, key, name, index)[:, None] ^ columns)
    # torch reads the halves as signed integers; flipping their sign bit gives them the same order here
    halves = (words & xp.uint32(0xFFFF)) ^ xp.uint32(0x8000), (words >> xp.uint32(16)) ^ xp.uint32(0x8000)
    kept = xp.stack([half >= xp.uint32(count_dropped(rate)) for half in halves], -1)
    return kept.reshape(len(words), -1)[:, :size]


def share_kept(rate: float) -> float:
    """Return the probability that an element is kept."""
    return 1.0 - count_dropped(rate) / 2**16


def count_dropped(rate: float) -> int:
    """Return how many of the 65,536 values of half a word drop an element: the nearest number, and never all."""
    return min(round(rate * 2**16), 2**16 - 1)


def uniform(xp: Any, key: Any, name: str, index: Any) -> Any:
    """Uniform draws strictly between 0 and 1, float32, from the 23 upper bits of `bits`."""
    upper = (bits(xp, key, name, index) >> xp.uint32(9)).astype(xp.float32)
    return (upper + xp.float32(0.5)) * xp.float32(2.0**-23)


def normal(xp: Any, key: Any, name: str, index: Any, kind: Any = None) -> Any:
    """Standard normal draws by Box and Muller (1958), float32, or computed in the type `kind`.

    The backends compute logarithm and cosine differently: in float32 the last bits may differ.
    """
    kind = kind or xp.float32
    radius = xp.sqrt(-2.0 * xp.log(uniform(xp, key, name + "/radius", index).astype(kind)))
    return radius * xp.cos(xp.asarray(2.0 * math.pi, kind) * uniform(xp, key, name + "/angle", index).astype(kind))
