"""Level 3: stages, by dynamic programming over blocks, stages and devices under a memory limit.

`best[e][b][d]` is the shortest possible time of the busiest device if the blocks from b to the last become e stages on
d devices. A stage of blocks b to c on r devices takes, in one step,

    (n / r) max(forward + backward, receiving, receiving gradients) + all-reduce,

with n micro-batches in the pipeline: messages travel while the device computes, so that the slower of the two counts.
RaNNC adds them, because it sends them one after the other. Counting stages from the last lets one table serve every
number of stages, because a 1F1B schedule's memory depends only on the stages left.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suite.comm.partition.orders import Schedule, in_flight

Array = npt.NDArray[np.float64]
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
        entering: bytes of the values that are received for one micro-batch.
        returning: bytes of the gradients that are received for one micro-batch.
        allowed: whether the model may be cut at b and at c.
    """

    forward: Array
    backward: Array
    trainable: Array
    fixed: Array
    saved: Array
    entering: Array
    returning: Array
    allowed: npt.NDArray[np.bool_]

    def memory(self, held: int, recompute: bool, state: float = ADAM) -> Array:
        """Bytes that a device needs.

        Args:
            held: number of micro-batches whose activations it holds at once.
            recompute: whether it keeps only what it received, and computes the rest again before each backward pass.
            state: bytes of optimizer state for a byte of trainable parameters.
        """
        arrays = (2 + state) * self.trainable + self.fixed
        received = held * self.entering + self.returning
        return arrays + received + (self.saved if recompute else held * self.saved)


@dataclass(frozen=True)
class Problem:
    """What the stages of one pipeline are planned for.

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


@dataclass(frozen=True)
class Cut:
    """One stage of a solution: blocks from `first` to before `last`, on `replicas` devices."""

    first: int
    last: int
    replicas: int
    recompute: bool


@dataclass(frozen=True)
class Solution:
    """The stages with the shortest time of the busiest device.

    Attributes:
        cuts: the stages, in order.
        busiest: seconds that the busiest device computes, receives and averages gradients; no step is shorter.
    """

    cuts: tuple[Cut, ...]
    busiest: float


def solve_stages(problem: Problem, devices: int, stages: int) -> dict[tuple[int, int], Solution]:
    """Return the best stages for every number of stages and devices.

    Args:
        problem: what is planned.
        devices: largest number of devices of one pipeline.
        stages: largest number of stages.

    Returns:
        (stages, devices) to the solution; combinations that do not fit are missing.
    """
    size = problem.costs.forward.shape[0]
    last = np.full((devices + 1, size), np.inf)
    last[0, size - 1] = 0.0
    choices: list[npt.NDArray[np.int64]] = []
    tables = [last]
    recomputed: list[dict[int, npt.NDArray[np.bool_]]] = []
    for left in range(1, stages + 1):
        best = np.full((devices + 1, size), np.inf)
        choice = np.zeros((devices + 1, size, 2), dtype=np.int64)
        short: dict[int, npt.NDArray[np.bool_]] = {}
        for replicas in problem.replicas:
            if replicas > devices:
                continue
            busy, short[replicas] = problem.busy(left, replicas)
            times = np.maximum(busy, tables[-1][: devices + 1 - replicas, None, :])  # by devices, first and last block
            nearest = times.argmin(axis=2)
            shortest = np.take_along_axis(times, nearest[:, :, None], 2)[:, :, 0]
            better = shortest < best[replicas:]
            best[replicas:][better] = shortest[better]
            choice[replicas:, :, 0][better] = nearest[better]
            choice[replicas:, :, 1][better] = replicas
        tables.append(best)
        choices.append(choice)
        recomputed.append(short)
    solutions = {}
    for left in range(1, stages + 1):
        for count in range(left, devices + 1):
            if np.isfinite(tables[left][count, 0]):
                cuts = _traced(choices, recomputed, left, count)
                solutions[left, count] = Solution(cuts, float(tables[left][count, 0]))
    return solutions


def _traced(
    choices: list[npt.NDArray[np.int64]], recomputed: list[dict[int, npt.NDArray[np.bool_]]], left: int, count: int
) -> tuple[Cut, ...]:
    """Follow the choices from the first block to the last."""
    cuts = []
    first = 0
    for remaining in range(left, 0, -1):
        last, replicas = map(int, choices[remaining - 1][count, first])
        cuts.append(Cut(first, last, replicas, bool(recomputed[remaining - 1][replicas][first, last])))
        first, count = last, count - replicas
    return tuple(cuts)
