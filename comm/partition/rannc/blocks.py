"""RaNNC's blocks: components that exchange values are merged in pairs, level by level, until at most 32 are left.

On each level, every component in turn, the shortest first, is merged with the reader of its values that gains most. The
merged pair must be convex, fit into memory, and take at most the mean and two standard deviations of the level's times.
The pair need not be neighbours in the program, so that a block may have gaps. When no pair is left to merge, the
shortest block is merged with its shorter neighbour, in an order in which the blocks can run.

RaNNC measures a merged pair; here its time is the sum of the two, so that the gain is the time of the message between
them. RaNNC checks that a pair is convex as the level began, so that two pairs can wait for each other; here the check
includes the pairs merged before.

Source: Tanaka et al. 2021 (arXiv:2103.16063), and `Partitioner.cpp` of nict-wisdom/rannc.
"""

import math
from collections.abc import Sequence

import numpy as np

from suite.comm.partition.graph import Graph
from suite.comm.partition.planner.components import find_components
from suite.comm.partition.planner.request import Request
from suite.comm.partition.rannc.groups import Groups

POINT_TO_POINT = 20 * 2**30  # bytes a second, without latency
MOST_MICRO_BATCHES = 32
MOST, FEWEST = 32, 5  # blocks
MANY = 200  # components above which RaNNC does not measure pairs
OPTIMIZER = 2.0  # bytes of optimizer state for a byte of parameters, whatever the optimizer


def form_blocks(graph: Graph, request: Request, room: float) -> Sequence[tuple[int, ...]]:
    """Return the blocks of a graph in an order that runs, as indices of nodes without constant ones.

    Args:
        graph: of the model.
        request: what is planned; times are those of the smallest micro-batch.
        room: bytes of a device that a block may use.
    """
    samples = math.ceil(request.batch / (request.devices * MOST_MICRO_BATCHES))
    groups = Groups(graph, find_components(graph), request.device, samples)
    while len(groups) > FEWEST:
        before = len(groups)
        _merge_level(groups, room)
        if len(groups) == before:
            break
    _merge_small(groups, room)
    return groups.blocks()


def _merge_level(groups: Groups, room: float) -> None:
    """Merge each group at most once."""
    times = list(groups.seconds.values())
    longest = float(np.mean(times) + 2 * np.std(times))
    many = len(groups) > MANY
    merged: set[int] = set()
    for first in sorted(groups.seconds, key=lambda group: (groups.seconds[group], groups.place[group])):
        if first not in merged and len(groups) > FEWEST:
            merged.add(first)
            best = _best(groups, first, merged, longest, room, many)
            if best is not None:
                merged.add(best)
                groups.merge(first, best)


def _best(groups: Groups, first: int, merged: set[int], longest: float, room: float, many: bool) -> int | None:
    """Find the reader of a group's values that gains most by merging, the last of equals; None if none may be."""
    best, largest = None, 0.0
    for second in groups.readers(first):
        alone = groups.seconds[first], groups.seconds[second]
        short = max(alone) <= longest if many else sum(alone) <= longest
        if second in merged or not short or not (many or groups.memory(first, second, OPTIMIZER) < room):
            continue
        together = 0.0 if many else sum(alone)
        gain = sum(alone) + groups.exchanged(first, second) / POINT_TO_POINT - together
        if gain >= largest and groups.convex(first, second):
            best, largest = second, gain
    return best


def _merge_small(groups: Groups, room: float) -> None:
    """Merge the shortest group with its shorter neighbour, while there are too many and both neighbours fit."""
    while len(groups) > MOST:
        order = groups.order()
        index = min(range(len(order)), key=lambda index: groups.seconds[order[index]])
        pairs = [(order[left], order[left + 1]) for left in (index - 1, index) if 0 <= left < len(order) - 1]
        if any(groups.memory(*pair, OPTIMIZER) >= room for pair in pairs):
            break
        groups.merge(*min(pairs, key=lambda pair: groups.seconds[pair[0]] + groups.seconds[pair[1]]))
