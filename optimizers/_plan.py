"""Matrices and buckets of equal blocks: the part of a curvature method's plan that both backends share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Buckets:
    """Blocks of the same key stand in one stack, so that one batched call treats them all.

    Rank r owns the r-th slice of each stack, of equal length but for the last ones, which may be shorter or empty.
    Keys are strings, because they name state in checkpoints.
    """

    members: dict[str, tuple[Any, ...]]  # blocks of each bucket, in order
    share: dict[str, int]  # rows of a whole slice of its stack
    place: dict[Any, tuple[str, int]]  # bucket and row of each block

    def owners(self, key: str) -> tuple[int, ...]:
        """The rank that owns each row of a stack."""
        return tuple(row // self.share[key] for row in range(len(self.members[key])))


def dealt(count: int, world: int) -> tuple[int, ...]:
    """The rank that owns each of `count` rows: a slice for each, as long as there are any left."""
    share = -(-count // world)
    return tuple(row // share for row in range(count))


def bucket(keys: Mapping[Any, str], world: int) -> Buckets:
    """Group blocks by key, in the order given."""
    members: dict[str, list[Any]] = {}
    for block, key in keys.items():
        members.setdefault(key, []).append(block)
    return Buckets(
        members={key: tuple(blocks) for key, blocks in members.items()},
        share={key: -(-len(blocks) // world) for key, blocks in members.items()},
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
        sent: the owner of each matrix that travels to it.
        gathered: the owner of each matrix on the way back.
        work: of the busiest owner, in multiplications or anything else that `total` is in.
        total: of all owners.
    """

    name: str
    side: int
    sent: tuple[int, ...]
    gathered: tuple[int, ...]
    work: float
    total: float
