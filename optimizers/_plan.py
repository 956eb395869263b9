"""Matrices and buckets of equal blocks: the part of a curvature method's plan that both backends share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Buckets:
    """Blocks of the same key stand in one stack, so that one batched call treats them all.

    Each stack is padded to a multiple of the number of ranks, and rank r owns the r-th slice of it.
    Keys are strings, because they name state in checkpoints.
    """

    members: dict[str, tuple[Any, ...]]  # blocks of each bucket, in order
    padded: dict[str, int]  # rows of its stack
    place: dict[Any, tuple[str, int]]  # bucket and row of each block

    def filler(self, key: str) -> int:
        """Rows of padding at the end of a stack."""
        return self.padded[key] - len(self.members[key])


def bucket(keys: Mapping[Any, str], world: int) -> Buckets:
    """Group blocks by key, in the order given."""
    members: dict[str, list[Any]] = {}
    for block, key in keys.items():
        members.setdefault(key, []).append(block)
    return Buckets(
        members={key: tuple(blocks) for key, blocks in members.items()},
        padded={key: -(-len(blocks) // world) * world for key, blocks in members.items()},
        place={block: (key, row) for key, blocks in members.items() for row, block in enumerate(blocks)},
    )


def merge(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape a parameter is treated in: without sides of length 1, all but the first merged.

    Two sides make a matrix, fewer a vector: (16, 3, 3, 3) is (16, 27), (1024, 1024) stays, (64, 1, 1, 1) is (64,).
    """
    sides = [side for side in shape if side > 1]
    return tuple(sides) if len(sides) < 2 else (sides[0], math.prod(sides[1:]))


class Exchange(NamedTuple):
    """What the owners of a bucket's symmetric matrices do in one step.

    Attributes:
        name: of the bucket.
        side: rows of each matrix.
        sent: matrices of one owner on the way to it; every rank sends as many to each other rank.
        gathered: matrices of one owner on the way back.
        work: of the busiest owner, in multiplications or anything else that `total` is in.
        total: of all owners.
    """

    name: str
    side: int
    sent: int
    gathered: int
    work: float
    total: float
