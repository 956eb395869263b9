"""Level 2: blocks, made by merging neighbouring components until few remain.

Blocks are intervals of the program. An interval is convex: no path leaves it and returns, so that blocks can run one
after another. RaNNC also merges components that are not neighbours; then the gradients of a value that several stages
use would be summed in another order than in the unmodified model, and the last bits would differ.

The shortest block is merged first, over the boundary that more bytes cross. A merged block may take at most `LONGEST`
of the mean time of the remaining blocks, unless nothing else is left.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.comm.partition.graph import Graph
from suite.comm.partition.planner.components import find_components

LONGEST = 1.5  # so that 54 equal layers in 64 blocks can still be balanced; RaNNC: mean + 2 standard deviations


@dataclass
class Block:
    """Neighbouring components that are never separated.

    Attributes:
        nodes: indices in the graph.
        seconds: of one micro-batch, forward and backward.
        before: the number of the block before; -1 for the first.
        after: the number of the block after; -1 for the last.
        crossing: bytes that cross the boundary before it.
    """

    nodes: list[int]
    seconds: float
    before: int
    after: int
    crossing: int


def find_blocks(graph: Graph, seconds: Callable[[int], float], limit: int) -> Sequence[tuple[int, ...]]:
    """Find the blocks of a graph in program order, as indices of nodes without constant ones.

    Args:
        graph: of the model.
        seconds: time of one node, forward and backward.
        limit: largest number of blocks.
    """
    parts = find_components(graph)
    crossing = _crossing(graph, parts)
    merged = {
        number: Block(list(part), sum(map(seconds, part)), number - 1, number + 1, crossing[number])
        for number, part in enumerate(parts)
    }
    if merged:
        merged[len(parts) - 1].after = -1
    longest = LONGEST * sum(block.seconds for block in merged.values()) / limit
    _merge(merged, limit, longest)
    _merge(merged, limit, float("inf"))
    return [tuple(sorted(block.nodes)) for block in merged.values()]


def _merge(merged: dict[int, Block], limit: int, longest: float) -> None:
    """Merge blocks until at most `limit` are left, or none can be merged without exceeding `longest`."""
    heap = [(block.seconds, number) for number, block in merged.items()]
    heapq.heapify(heap)
    while heap and len(merged) > limit:
        seconds, number = heapq.heappop(heap)
        if number not in merged or merged[number].seconds != seconds:
            continue
        block = merged[number]
        seams = [(merged[block.after].crossing, number, block.after)] if block.after >= 0 else []
        seams += [(block.crossing, block.before, number)] if block.before >= 0 else []
        seams = [seam for seam in seams if merged[seam[1]].seconds + merged[seam[2]].seconds <= longest]
        if seams:
            _, first, second = max(seams)
            _join(merged, first, second)
            heapq.heappush(heap, (merged[first].seconds, first))


def _join(merged: dict[int, Block], first: int, second: int) -> None:
    """Merge the second block into the first, its neighbour."""
    kept, gone = merged[first], merged.pop(second)
    kept.nodes += gone.nodes
    kept.seconds += gone.seconds
    kept.after = gone.after
    if kept.after >= 0:
        merged[kept.after].before = first


def _crossing(graph: Graph, parts: Sequence[tuple[int, ...]]) -> list[int]:
    """Bytes that cross the boundary before each component; a gradient counts once more."""
    home = {node: number for number, part in enumerate(parts) for node in part}
    change = [0] * (len(parts) + 1)
    for name, maker in graph.maker.items():
        readers = [home[reader] for reader in graph.users[name] if reader in home]
        if maker in home and readers and max(readers) > home[maker]:
            value = graph.values[name]
            size = value.nbytes * (1 + value.differentiable)
            change[home[maker] + 1] += size
            change[max(readers) + 1] -= size
    return list(itertools.accumulate(change))[: len(parts)]
