"""Arithmetic on many tensors at once: each kernel takes the tensors of a whole group, joined end to end."""

import math
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from suite.optimizers._base.torch import place_numbers
from suite.optimizers.vogn.plan import find_limit
from suite.stream.torch import draw_uniform, make_signed

Tree = dict[str, Tensor]


def group_tensors(named: Tree) -> Iterator[Tree]:
    """Yield groups of one type, each small enough that copies of it fit; a larger tensor is a group by itself."""
    group: Tree = {}
    for name, value in named.items():
        held = list(group.values())
        if held and (
            held[0].dtype != value.dtype or sum(map(Tensor.numel, held)) + value.numel() > find_limit(value.device.type)
        ):
            yield group
            group = {}
        group[name] = value
    if group:
        yield group


def join_tensors(values: Sequence[Tensor]) -> Tensor:
    """Return the elements of all tensors in one vector."""
    return torch.cat([value.reshape(-1) for value in values])


def split_vector(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a vector, in the shapes of these tensors."""
    parts = vector.split([value.numel() for value in like])
    return [part.view(value.shape) for part, value in zip(parts, like, strict=True)]


def draw_normal(key: tuple[int, int], names: Sequence[str], like: Sequence[Tensor]) -> list[Tensor]:
    """Draw `suite.stream.normal` for several streams at once.

    Args:
        key: two words, for example the seed and the step.
        names: of the random streams.
        like: for each stream a tensor of its shape; all are of one type, on one device.

    Returns:
        For each stream one draw for each element.
    """
    sizes = [value.numel() for value in like]
    starts = accumulate(sizes[:-1], initial=0)
    checksums = [make_signed(zlib.crc32(f"{name}/{part}".encode())) for part in ("radius", "angle") for name in names]
    table = place_numbers([*checksums, *starts], like[0], torch.int32).view(3, -1)
    counts = place_numbers(sizes, like[0], torch.int64)
    streams = torch.repeat_interleave(counts, output_size=sum(sizes))  # with it, the host does not wait for a GPU
    words, start = table[:2, streams], table[2, streams]
    index = torch.arange(len(streams), dtype=torch.int32, device=like[0].device) - start
    radius, angle = draw_uniform(key, words, index.expand_as(words)).to(like[0].dtype)
    return split_vector((-2.0 * radius.log()).sqrt() * (2.0 * math.pi * angle).cos(), like)
