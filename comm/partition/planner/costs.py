"""Costs of every possible stage, from the costs of the operations in its blocks."""

from collections.abc import Sequence

import numpy as np

from suite.comm.partition.device import Device
from suite.comm.partition.graph import Graph
from suite.comm.partition.planner.stages import Array, Costs


def sum_costs(graph: Graph, blocks: Sequence[tuple[int, ...]], device: Device, samples: int) -> Costs:
    """Return the costs of blocks b to c - 1 as one stage, for every b and c.

    Args:
        graph: of the model.
        blocks: from `blocks.find_blocks`.
        device: that runs the stages.
        samples: of one micro-batch.
    """
    home = {node: number for number, members in enumerate(blocks) for node in members}
    seconds = np.zeros((len(blocks), 2))
    saved, work = np.zeros(len(blocks)), np.zeros(len(blocks))
    for node, number in home.items():
        seconds[number] += device.seconds(graph, graph.nodes[node], samples)
        saved[number] += graph.nodes[node].saved * samples / graph.samples
        work[number] = max(work[number], graph.nodes[node].traffic * samples / graph.samples)
    entering, returning = _crossing(graph, home, len(blocks), samples)
    trainable, fixed = _parameters(graph, blocks)
    boundaries = _boundaries(graph, blocks)
    ones = np.ones((len(blocks) + 1, len(blocks) + 1))
    return Costs(
        forward=_sums(seconds[:, 0]),
        backward=_sums(seconds[:, 1]),
        trainable=trainable,
        fixed=fixed,
        saved=_sums(saved),
        work=_maxima(work),
        entering=ones * entering[:, None],
        returning=ones * returning[None, :],
        allowed=boundaries[:, None] & boundaries[None, :],
    )


def _sums(values: Array) -> Array:
    """Sums of values[b:c] at [b, c]; zero where c ≤ b."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.maximum(total[None, :] - total[:, None], 0.0) * np.triu(np.ones((len(total), len(total))), 1)


def _maxima(values: Array) -> Array:
    """Largest of values[b:c] at [b, c]; zero where c ≤ b."""
    largest = np.zeros((len(values) + 1, len(values) + 1))
    for first in range(len(values)):
        largest[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return largest


def _crossing(graph: Graph, home: dict[int, int], count: int, samples: int) -> tuple[Array, Array]:
    """Bytes of values, and of gradients, that cross each boundary b between blocks b - 1 and b."""
    entering, returning = np.zeros(count + 1), np.zeros(count + 1)
    for name, first, last in list_spans(graph, home, count):
        value = graph.values[name]
        size = value.nbytes * (samples / graph.samples if value.batched else 1)
        entering[first + 1 : last + 1] += size
        returning[first + 1 : last + 1] += size * value.differentiable
    return entering, returning


def list_spans(graph: Graph, home: dict[int, int], count: int) -> list[tuple[str, int, int]]:
    """Each computed value, the block that makes it, and the last block that uses it.

    The caller takes the model's outputs from the last block. Values of constant nodes are not in the list: every stage
    computes them.
    """
    uses = []
    for name, maker in graph.maker.items():
        if maker in home:
            readers = [home[reader] for reader in graph.users[name] if reader in home]
            last = count - 1 if name in graph.outputs else max(readers, default=home[maker])
            uses.append((name, home[maker], last))
    return uses


def _readers(graph: Graph, blocks: Sequence[tuple[int, ...]]) -> dict[str, set[int]]:
    """Return the blocks that read each parameter, themselves or through their constant nodes."""
    readers: dict[str, set[int]] = {}
    for number, members in enumerate(blocks):
        for index in graph.with_constants(members):
            for name in graph.nodes[index].parameters:
                readers.setdefault(name, set()).add(number)
    return readers


def _parameters(graph: Graph, blocks: Sequence[tuple[int, ...]]) -> tuple[Array, Array]:
    """Bytes of the trainable and of the other parameters of each stage; a parameter of several blocks counts once."""
    size = len(blocks)
    alone = np.zeros((size, 2))
    shared = np.zeros((size + 1, size + 1, 2))
    for name, numbers in _readers(graph, blocks).items():
        parameter = graph.parameters[name]
        kind = 0 if parameter.trainable else 1
        if len(numbers) == 1:
            alone[numbers.pop(), kind] += parameter.nbytes
            continue
        marks = np.zeros(size)
        marks[list(numbers)] = 1
        shared[:, :, kind] += parameter.nbytes * (_sums(marks) > 0)
    return _sums(alone[:, 0]) + shared[:, :, 0], _sums(alone[:, 1]) + shared[:, :, 1]


def _boundaries(graph: Graph, blocks: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return whether the model may be cut before each block: not between operations that share a changing buffer."""
    allowed = np.ones(len(blocks) + 1, dtype=bool)
    changing = {name for node in graph.nodes for name in node.changes}
    for name, numbers in _readers(graph, blocks).items():
        if name in changing:
            allowed[min(numbers) + 1 : max(numbers) + 1] = False
    return allowed
