"""Level 2: blocks, made by merging components that depend on each other until few remain.

The smallest block is merged first, with the neighbour that saves the most traffic. A merge must keep blocks convex: no
path leaves a block and returns to it, so that blocks can run one after another. No merged block takes longer than
`LONGEST` of the mean time of the remaining blocks, unless nothing else is left.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from suite.comm.partition.components import components
from suite.comm.partition.graph import Graph

LONGEST = 1.5  # chosen so that 54 equal layers in 64 blocks can still be balanced; RaNNC: mean + 2 standard deviations


@dataclass
class Block:
    """Nodes that are never separated, and the neighbouring blocks by number."""

    nodes: list[int]
    seconds: float
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


class Blocks:
    """The blocks of a graph, while they are merged.

    Args:
        graph: of the model.
        seconds: time of one node, forward and backward.
    """

    def __init__(self, graph: Graph, seconds: Callable[[int], float]):
        self.graph = graph
        parts = components(graph)
        self.blocks = {number: Block(list(part), sum(map(seconds, part))) for number, part in enumerate(parts)}
        self.home = {node: number for number, part in enumerate(parts) for node in part}
        for name, readers in graph.users.items():
            maker = self.home.get(graph.maker.get(name, -1))
            for reader in {self.home[reader] for reader in readers if reader in self.home} - {maker}:
                if maker is not None:
                    self.blocks[maker].after.add(reader)
                    self.blocks[reader].before.add(maker)
        self.total = sum(block.seconds for block in self.blocks.values())

    def traffic(self, first: int, second: int) -> int:
        """Bytes from one block to another; a gradient counts once more."""
        sent = 0
        for node in self.blocks[first].nodes:
            for name in self.graph.nodes[node].outputs:
                value = self.graph.values[name]
                if any(self.home.get(reader) == second for reader in self.graph.users[name]):
                    sent += value.nbytes * (1 + value.differentiable)
        return sent

    def convex(self, first: int, second: int) -> bool:
        """Whether the direct edge is the only path from the first block to the second."""
        seen = set()
        queue = [number for number in self.blocks[first].after if number != second]
        last = max(self.blocks[second].nodes)
        while queue:
            number = queue.pop()
            if number == second:
                return False
            if number not in seen and min(self.blocks[number].nodes) < last:
                seen.add(number)
                queue.extend(self.blocks[number].after)
        return True

    def merge(self, first: int, second: int) -> int:
        """Merge the second block into the first; return the number of the result."""
        kept, gone = self.blocks[first], self.blocks.pop(second)
        for node in gone.nodes:
            self.home[node] = first
        for number in gone.before - {first}:
            self.blocks[number].after ^= {second}
            self.blocks[number].after.add(first)
        for number in gone.after - {first}:
            self.blocks[number].before ^= {second}
            self.blocks[number].before.add(first)
        kept.nodes = sorted(kept.nodes + gone.nodes)
        kept.seconds += gone.seconds
        kept.before = (kept.before | gone.before) - {first, second}
        kept.after = (kept.after | gone.after) - {first, second}
        return first

    def partners(self, number: int) -> list[tuple[int, int]]:
        """The pairs (first, second) of this block and a neighbour that may be merged."""
        block = self.blocks[number]
        pairs = [(number, after) for after in sorted(block.after)] + [
            (before, number) for before in sorted(block.before)
        ]
        return [pair for pair in pairs if self.convex(*pair)]

    def coarsen(self, limit: int) -> None:
        """Merge the smallest block with its best neighbour until at most `limit` blocks are left."""
        heap = [(block.seconds, number) for number, block in self.blocks.items()]
        heapq.heapify(heap)
        full: list[tuple[float, int]] = []
        while heap and len(self.blocks) > limit:
            seconds, number = heapq.heappop(heap)
            if number not in self.blocks or self.blocks[number].seconds != seconds:
                continue
            longest = LONGEST * self.total / limit
            pairs = [pair for pair in self.partners(number) if self._merged(pair) <= max(longest, seconds)]
            if not pairs:
                full.append((seconds, number))
                continue
            best = max(pairs, key=lambda pair: (self.traffic(*pair), -self._merged(pair), pair))
            kept = self.merge(*best)
            heapq.heappush(heap, (self.blocks[kept].seconds, kept))

    def _merged(self, pair: tuple[int, int]) -> float:
        return self.blocks[pair[0]].seconds + self.blocks[pair[1]].seconds

    def in_order(self) -> list[tuple[int, ...]]:
        """The nodes of each block, so that every block runs after those it depends on; otherwise in program order."""
        waiting = {number: len(block.before) for number, block in self.blocks.items()}
        ready = [(min(block.nodes), number) for number, block in self.blocks.items() if not block.before]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, number = heapq.heappop(ready)
            ordered.append(tuple(self.blocks[number].nodes))
            for after in self.blocks[number].after:
                waiting[after] -= 1
                if not waiting[after]:
                    heapq.heappush(ready, (min(self.blocks[after].nodes), after))
        return ordered


def blocks(graph: Graph, seconds: Callable[[int], float], limit: int) -> Sequence[tuple[int, ...]]:
    """The blocks of a graph in an order in which they can run, as indices of nodes without constant ones.

    Args:
        graph: of the model.
        seconds: time of one node, forward and backward.
        limit: largest number of blocks.
    """
    merging = Blocks(graph, seconds)
    merging.coarsen(limit)
    return merging.in_order()
