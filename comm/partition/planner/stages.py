"""Level 3: stages, by dynamic programming over blocks, stages and replicas under a memory limit.

A table has the shortest possible time of the busiest device if the blocks from b to the last become stages of one
shape, which is the number of replicas of each. A stage of blocks b to c on r devices takes, in one step,

    (n / r) max(forward + backward, receiving, receiving gradients) + all-reduce,

with n micro-batches in the pipeline: messages travel while the device computes, so that the slower of the two counts.
RaNNC adds them, because it sends them one after the other. Second tables count the time that the pipeline takes to fill
and to empty, too; the simulation decides. Counting stages from the last lets one table serve every number of stages,
because a 1F1B schedule's memory depends only on the stages left.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suite.comm.partition.orders import Schedule, in_flight

Array = npt.NDArray[np.float64]
Shape = tuple[int, ...]
FEW = 8  # devices of a pipeline up to which every shape is kept
ADAM = 2.0  # bytes of optimizer state for a byte of trainable parameters: two averages
LIMIT = 0.9  # share of the memory that a plan may use; the rest is for work space and fragmentation, as in RaNNC


@dataclass(frozen=True)
class Costs:
    """Costs of the blocks from b to c - 1 as one stage, as matrices (blocks + 1, blocks + 1) with entry [b, c].

    Attributes:
        forward: seconds of one micro-batch.
        backward: seconds of one micro-batch, without recomputation.
        trainable: bytes of the trainable parameters.
        fixed: bytes of other parameters, buffers and constants.
        saved: bytes kept from forward to backward for one micro-batch.
        work: bytes that the largest operation reads and writes.
        entering: bytes of the values that are received for one micro-batch.
        returning: bytes of the gradients that are received for one micro-batch.
        allowed: whether the model may be cut at b and at c.
    """

    forward: Array
    backward: Array
    trainable: Array
    fixed: Array
    saved: Array
    work: Array
    entering: Array
    returning: Array
    allowed: npt.NDArray[np.bool_]

    def memory(self, held: int, recompute: bool, state: float = ADAM) -> Array:
        """Bytes that a device needs.

        A backward pass gives its activations back while the micro-batch's gradients come, which are then added to the
        sums: the larger of the two counts.

        Args:
            held: number of micro-batches whose activations it holds at once.
            recompute: whether it keeps only what it received, and computes the rest again before each backward pass.
            state: bytes of optimizer state for a byte of trainable parameters.
        """
        arrays = (2 + state) * self.trainable + self.fixed
        received = held * self.entering + self.returning
        others = 0.0 if recompute else (held - 1) * self.saved
        return arrays + received + others + np.maximum(self.saved, self.trainable) + self.work


@dataclass(frozen=True)
class Problem:
    """Demands on the stages of one pipeline.

    Attributes:
        costs: of the blocks, for the size of the micro-batch.
        micro_batches: of one pipeline in one step.
        schedule: `gpipe` or `1f1b`.
        memory: bytes of one device.
        send: (bytes, messages) to seconds.
        all_reduce: (bytes of gradients, replicas of the stage in this pipeline) to seconds.
        replicas: how many devices a stage may have.
        state: bytes of optimizer state for a byte of trainable parameters.
    """

    costs: Costs
    micro_batches: int
    schedule: Schedule
    memory: float
    send: Callable[[Array], Array]
    all_reduce: Callable[[Array, int], Array]
    replicas: tuple[int, ...]
    state: float = ADAM

    def busy(self, stages_left: int, replicas: int) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Seconds that a device of each possible stage is busy, infinite if impossible; and whether it recomputes."""
        costs = self.costs
        held = in_flight(self.schedule, stages_left, replicas, self.micro_batches)
        room = LIMIT * self.memory
        whole = costs.memory(held, False, self.state) <= room
        short = ~whole & (costs.memory(held, True, self.state) <= room)
        passes = costs.forward + costs.backward + np.where(short, costs.forward, 0.0)
        passes = np.maximum(passes, np.maximum(self.send(costs.entering), self.send(costs.returning)))
        own = -(-self.micro_batches // replicas)
        seconds = own * passes + self.all_reduce(costs.trainable, replicas)
        possible = costs.allowed & (whole | short) & np.triu(np.ones_like(whole), 1)
        return np.where(possible, seconds, np.inf), short

    @property
    def passing(self) -> Array:
        """Seconds in which one micro-batch passes a stage and comes back, with the messages to the stage after it."""
        sent = self.send(self.costs.entering[:, -1]) + self.send(self.costs.returning[0])
        return self.costs.forward + self.costs.backward + sent


@dataclass(frozen=True)
class Cut:
    """One stage of a solution: blocks from `first` to before `last`, on `replicas` devices."""

    first: int
    last: int
    replicas: int
    recompute: bool


@dataclass(frozen=True)
class Solution:
    """Best stages of one shape.

    Attributes:
        cuts: the stages, in order.
        seconds: that were made smallest.
    """

    cuts: tuple[Cut, ...]
    seconds: float

    @property
    def devices(self) -> int:
        """Number of devices of the pipeline."""
        return sum(cut.replicas for cut in self.cuts)


@dataclass(frozen=True)
class Table:
    """Best last stages of one shape, from each block on.

    Attributes:
        seconds: that are made smallest; infinite if nothing fits.
        ends: the block after the first of these stages.
        replicas: of the first of these stages.
    """

    seconds: Array
    ends: npt.NDArray[np.int64]
    replicas: npt.NDArray[np.int64]


def solve_stages(problem: Problem, devices: int, stages: int, *, filling: bool = False) -> list[Solution]:
    """Return the best stages of every shape: of all numbers of replicas, in pipelines of at most `FEW` devices.

    In larger pipelines, a shape is a number of stages and of devices.

    Args:
        problem: what is planned.
        devices: largest number of devices of one pipeline.
        stages: largest number of stages.
        filling: count the time until the last stage begins, and its way back, beside the busiest device.

    Returns:
        The solutions that fit, by number of stages.
    """
    size = problem.costs.forward.shape[0]
    end = np.full(size, np.inf)
    end[-1] = 0.0
    nothing = np.zeros(size, dtype=np.int64)
    layers: list[dict[Shape, Table]] = [{(): Table(end, nothing, nothing)}]
    short: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}
    for left in range(1, stages + 1):
        found: dict[Shape, Table] = {}
        for replicas in problem.replicas:
            shapes = [shape for shape in layers[-1] if sum(shape) + replicas <= devices]
            if not shapes:
                continue
            busy, short[left, replicas] = problem.busy(left, replicas)
            rest = np.stack([layers[-1][shape].seconds for shape in shapes])[:, None, :]
            times = np.maximum(busy, rest + problem.passing if filling and left > 1 else rest)
            ends = times.argmin(axis=2)  # by shape and first block
            seconds = np.take_along_axis(times, ends[:, :, None], 2)[:, :, 0]
            for shape, one, its in zip(shapes, seconds, ends, strict=True):
                _keep(found, _join(replicas, shape, devices), Table(one, its, np.full(size, replicas)))
        layers.append(found)
    return [
        Solution(_traced(layers, short, shape, left, devices), float(table.seconds[0]))
        for left, layer in enumerate(layers[1:], 1)
        for shape, table in layer.items()
        if np.isfinite(table.seconds[0])
    ]


def _join(replicas: int, shape: Shape, devices: int) -> Shape:
    """Return the shape of a stage before others: its replicas and theirs; in large pipelines, the sum of all."""
    return (replicas, *shape) if devices <= FEW else (replicas + sum(shape),)


def _keep(tables: dict[Shape, Table], shape: Shape, table: Table) -> None:
    """Keep the better stages of a shape, for each first block."""
    if (other := tables.get(shape)) is not None:
        better = table.seconds < other.seconds
        pairs = zip(vars(table).values(), vars(other).values(), strict=True)
        table = Table(*(np.where(better, one, two) for one, two in pairs))
    tables[shape] = table


def _traced(
    layers: list[dict[Shape, Table]],
    short: dict[tuple[int, int], npt.NDArray[np.bool_]],
    shape: Shape,
    left: int,
    devices: int,
) -> tuple[Cut, ...]:
    """Follow the choices from the first block to the last."""
    cuts = []
    first = 0
    for remaining in range(left, 0, -1):
        table = layers[remaining][shape]
        last, replicas = int(table.ends[first]), int(table.replicas[first])
        cuts.append(Cut(first, last, replicas, bool(short[remaining, replicas][first, last])))
        rest = shape[1:] if devices <= FEW else (sum(shape) - replicas,)
        first, shape = last, rest if remaining > 1 else ()
    return tuple(cuts)
