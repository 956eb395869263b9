"""`suite.stream` in torch, on the device of the indices: the same numbers, and a GPU's host does not wait.

torch cannot shift unsigned integers: words are int32, and masks clear copies of the sign.
"""

import math
import zlib

import torch
from torch import Tensor

from suite import stream

Key = tuple[int | Tensor, int | Tensor]  # (seed, step); scalars of int64 where a model is traced for a pipeline


def _mix(word: Tensor) -> Tensor:
    """Mix words in place."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = word.bitwise_xor_((word >> shift).bitwise_and_((1 << 32 - shift) - 1)).mul_(make_signed(factor))
    return word.bitwise_xor_((word >> 16).bitwise_and_(0xFFFF))


def make_signed(word: int) -> int:
    """Return the int32 with the same 32 bits."""
    return (word & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _bits(key: Key, name: int | Tensor, index: Tensor) -> Tensor:
    """`suite.stream.bits` from the checksums of names."""
    word = index.to(torch.int32, copy=True)
    for part in (name, *key):
        part = part.int() if isinstance(part, Tensor) else make_signed(part)
        word = _mix(word.bitwise_xor_(part)).add_(make_signed(0x9E3779B9))
    return _mix(word)


def uniform(key: Key, name: str, index: Tensor) -> Tensor:
    """`suite.stream.uniform` on the device."""
    if is_compiling():  # one operator, which torch.compile leaves alone: its C++ for shifts fails (torch 2.13)
        return _call_uniform(index, name, *map(torch.as_tensor, key))
    return draw_uniform(key, zlib.crc32(name.encode()), index)


def draw_uniform(key: Key, name: int | Tensor, index: Tensor) -> Tensor:
    """`uniform` from the checksum of a name, or from one for each index: int32, of the shape of `index`."""
    return (_bits(key, name, index) >> 9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)


def normal(key: Key, name: str, index: Tensor) -> Tensor:
    """`suite.stream.normal` on the device, in float32; its last bits may differ."""
    radius = uniform(key, f"{name}/radius", index).log().mul(-2.0).sqrt()
    return radius.mul(uniform(key, f"{name}/angle", index).mul(2.0 * math.pi).cos())


def keep(key: Key, name: str, index: Tensor, size: int, rate: float) -> Tensor:
    """`suite.stream.keep` on the device."""
    if is_compiling():
        return _call_keep(index, name, size, rate, *map(torch.as_tensor, key))
    columns = _mix(torch.arange(1, size // 2 + size % 2 + 1, dtype=torch.int32, device=index.device))
    words = _mix(_bits(key, zlib.crc32(name.encode()), index)[:, None] ^ columns)
    return words.view(torch.int16)[:, :size] >= stream.count_dropped(rate) - 2**15


def is_compiling() -> bool:
    """Return whether `torch.compile` traces the caller; not for an export, as for a pipeline."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


@torch.library.custom_op("suite::uniform", mutates_args=())
def _call_uniform(index: Tensor, name: str, seed: Tensor, step: Tensor) -> Tensor:
    return uniform((seed, step), name, index)


@torch.library.custom_op("suite::keep", mutates_args=())
def _call_keep(index: Tensor, name: str, size: int, rate: float, seed: Tensor, step: Tensor) -> Tensor:
    return keep((seed, step), name, index, size, rate)


@_call_uniform.register_fake
def _(index: Tensor, name: str, seed: Tensor, step: Tensor) -> Tensor:
    return index.new_empty(index.shape, dtype=torch.float32)


@_call_keep.register_fake
def _(index: Tensor, name: str, size: int, rate: float, seed: Tensor, step: Tensor) -> Tensor:
    return index.new_empty((len(index), size), dtype=torch.bool)
