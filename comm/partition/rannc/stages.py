"""RaNNC's stages: its dynamic programming over blocks, stages and devices, with its flaw.

A state is a boundary between blocks and a number of devices used before it. Its value is the longest forward pass plus
the longest backward pass of the stages so far. Averaging gradients is not part of it.

The flaw: a new chain of stages replaces the stored one if its own value is lower, but what is stored is the larger of
this value and that of the chain before its last stage. The two differ, because the longest passes are stored without
messages. So a chain may replace a better one. `planner/stages.py` compares what it stores.

Source: `DPStaging.cpp` of nict-wisdom/rannc.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.comm.partition.planner.stages import Array, Cut


@dataclass(frozen=True)
class Shares:
    """Costs of the blocks from b to c - 1 as one stage, for one device's share of a micro-batch, at [b, c].

    Attributes:
        forward: seconds, without messages.
        backward: seconds, with recomputation if there are several micro-batches, without messages.
        messages: seconds to receive the inputs and send the outputs.
        memory: bytes of a device.
    """

    forward: Array
    backward: Array
    messages: Array
    memory: Array


@dataclass(frozen=True)
class State:
    """Chain of stages that is stored for a boundary and a number of devices.

    Attributes:
        value: seconds; called `eval` in RaNNC.
        forward: seconds of the longest forward pass, without messages.
        backward: seconds of the longest backward pass, without messages.
        first: the first block of the last stage.
        used: devices of the stages before the last.
    """

    value: float
    forward: float
    backward: float
    first: int = 0
    used: int = 0


def chain_blocks(shares: Mapping[int, Shares], stages: int, devices: int, room: float) -> list[Cut] | None:
    """Return the stages that RaNNC chooses for a number of stages and devices; None if none fit into memory.

    Args:
        shares: costs by number of devices of a stage.
        stages: number of stages.
        devices: that the stages use together.
        room: bytes of one device.
    """
    count = next(iter(shares.values())).forward.shape[0] - 1
    tables = [{(0, 0): State(0.0, 0.0, 0.0)}]
    for number in range(1, stages + 1):
        ends = [count] if number == stages else range(number, count - stages + number + 1)
        table: dict[tuple[int, int], State] = {}
        for (first, used), before in sorted(tables[-1].items()):
            for replicas, share in shares.items():
                total = used + replicas
                if total == devices if number == stages else total < devices:
                    _extend(table, before, first, used, replicas, share, ends, room)
        tables.append(table)
    return _traced(tables, count, devices) if (count, devices) in tables[-1] else None


def _extend(
    table: dict[tuple[int, int], State],
    before: State,
    first: int,
    used: int,
    replicas: int,
    share: Shares,
    ends: Sequence[int],
    room: float,
) -> None:
    """Add a stage that begins at `first` to a chain, for every boundary at which it may end."""
    for end in ends:
        place = (first, end)
        if end <= first or share.memory[place] >= room:
            continue
        forward, backward, messages = (float(costs[place]) for costs in (share.forward, share.backward, share.messages))
        value = max(forward + messages, before.forward) + max(backward + messages, before.backward)
        stored = table.get((end, used + replicas))
        if stored is None or stored.value > value:
            longest = max(forward, before.forward), max(backward, before.backward)
            table[end, used + replicas] = State(max(value, before.value), *longest, first, used)


def _traced(tables: Sequence[Mapping[tuple[int, int], State]], end: int, devices: int) -> list[Cut]:
    """Follow the states from the last block to the first."""
    cuts = []
    for table in reversed(tables[1:]):
        state = table[end, devices]
        cuts.append(Cut(state.first, end, devices - state.used, False))
        end, devices = state.first, state.used
    return cuts[::-1]


def estimate_seconds(cuts: Sequence[Cut], shares: Mapping[int, Shares], micro_batches: int, all_reduce: float) -> float:
    """RaNNC's estimate of a step, by which it chooses the number of micro-batches.

    In each of its phases, all stages that have a micro-batch run, and the longest forward and backward pass count.

    Args:
        cuts: the stages.
        shares: costs by number of devices of a stage.
        micro_batches: of a step.
        all_reduce: seconds of the longest all-reduce, which comes last.
    """
    passes = []
    for cut in cuts:
        share, place = shares[cut.replicas], (cut.first, cut.last)
        messages = float(share.messages[place])
        passes.append((float(share.forward[place]) + messages, float(share.backward[place]) + messages))
    total = all_reduce
    for phase in range(micro_batches + len(cuts) - 1):
        running = passes[max(0, phase - micro_batches + 1) : phase + 1]
        total += max(forward for forward, _ in running) + max(backward for _, backward in running)
    return total
