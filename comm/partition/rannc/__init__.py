"""Plans the stages of a model by RaNNC's original rules (Tanaka et al. 2021, arXiv:2103.16063), for comparison.

Blocks and stages are those of `blocks.py` and `stages.py`. A pipeline takes as few hosts, and on them as
few stages, as memory allows; the search ends there. The devices of a stage, a power of two, divide each micro-batch.
Messages travel at 20 GiB/s and gradients are averaged at 10 GiB/s on any network. All stages compute their activations
again if there are several micro-batches. The defaults are RaNNC's, apart from at most 32 blocks as in the paper.

The choice is RaNNC's. The times that the plan shows are simulated with the request's network, as for other plans.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from suite.comm.partition.graph import Graph
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.costs import sum_costs
from suite.comm.partition.planner.describe import count_received, describe_stages, stage_times
from suite.comm.partition.planner.request import Request, check_stages, pipeline_problem
from suite.comm.partition.planner.stages import LIMIT, Array, Cut
from suite.comm.partition.rannc.blocks import MOST_MICRO_BATCHES, OPTIMIZER, POINT_TO_POINT, form_blocks
from suite.comm.partition.rannc.stages import Shares, chain_blocks, estimate_seconds
from suite.comm.partition.timeline import simulate_step
from suite.contract import UserError

ALL_REDUCE = 10 * 2**30  # bytes a second, for any number of devices


@dataclass(frozen=True)
class Candidate:
    """Stages that RaNNC's dynamic programming found for one number of micro-batches.

    Attributes:
        cuts: the stages.
        shares: their costs by number of devices.
        micro_batches: of one pipeline in one step.
        pipelines: number of pipelines.
        seconds: RaNNC's estimate of a step.
    """

    cuts: Sequence[Cut]
    shares: dict[int, Shares]
    micro_batches: int
    pipelines: int
    seconds: float


def plan(graph: Graph, request: Request) -> Plan:
    """Return RaNNC's plan.

    Numbers of pipelines and micro-batches that do not divide the batch are left out. If the hosts of a pipeline do not
    divide all hosts, some devices stay without work, as in RaNNC.

    Raises:
        UserError: if no number of stages fits into memory.
    """
    room = LIMIT * request.device.memory
    parts = form_blocks(graph, request, room)
    check_stages(request, len(parts))
    for pipelines, devices, stages in _sizes(request, len(parts)):
        found = [
            candidate
            for micro_batches in _micro_batches(request, pipelines)
            if (candidate := _candidate(graph, parts, request, pipelines, devices, stages, micro_batches))
        ]
        if found:
            return _described(graph, parts, request, min(found, key=lambda candidate: candidate.seconds))
    raise UserError(
        f"rannc_compat: RaNNC's rules find no stages that fit on {request.devices} devices of "
        f"{request.device.memory / 2**30:.3g} GiB; leave out rannc_compat"
    )


def _sizes(request: Request, count: int) -> Iterator[tuple[int, int, int]]:
    """Numbers of pipelines, of devices in each, and of stages, in the order in which RaNNC tries them."""
    per_host = min(request.network.ranks_per_host or request.devices, request.devices)
    hosts = request.devices // per_host
    for used in range(1, hosts + 1):
        fewest, most = (min(number, count) for number in (per_host * (used - 1) + 1, per_host * used))
        for stages in range(fewest, most + 1):
            if request.stages in (None, stages):
                yield hosts // used, per_host * used, stages


def _micro_batches(request: Request, pipelines: int) -> list[int]:
    """Numbers of micro-batches of one pipeline: powers of two up to 32, or the requested one."""
    if request.micro_batches is not None:
        return [request.micro_batches // pipelines] if request.micro_batches % pipelines == 0 else []
    powers = (2**power for power in range(MOST_MICRO_BATCHES.bit_length()))
    return [power for power in powers if request.batch % (pipelines * power) == 0]


def _candidate(
    graph: Graph,
    parts: Sequence[tuple[int, ...]],
    request: Request,
    pipelines: int,
    devices: int,
    stages: int,
    micro_batches: int,
) -> Candidate | None:
    """Return the stages for one number of micro-batches; None if none fit."""
    samples = request.batch // (pipelines * micro_batches)
    shares = {
        replicas: _shares(graph, parts, request, math.ceil(samples / replicas), micro_batches)
        for replicas in (2**power for power in range(devices.bit_length()))
        if replicas <= min(devices, samples)
    }
    cuts = chain_blocks(shares, stages, devices, LIMIT * request.device.memory)
    if cuts is None:
        return None
    table = sum_costs(graph, parts, request.device, 1)
    largest = max(table.trainable[cut.first, cut.last] for cut in cuts)
    estimate = estimate_seconds(cuts, shares, micro_batches, float(largest) / ALL_REDUCE)
    return Candidate(cuts, shares, micro_batches, pipelines, estimate)


def _shares(
    graph: Graph, parts: Sequence[tuple[int, ...]], request: Request, samples: int, micro_batches: int
) -> Shares:
    """Return the costs of every possible stage on a device that gets `samples` of each micro-batch."""
    table = sum_costs(graph, parts, request.device, samples)
    inputs, outputs, gradients = _exchanged(graph, parts, samples)
    arrays = (2 + OPTIMIZER) * table.trainable + table.fixed
    return Shares(
        forward=table.forward,
        backward=table.backward + (table.forward if micro_batches > 1 else 0.0),
        messages=(inputs + outputs) / POINT_TO_POINT,
        memory=arrays + table.saved + (inputs + outputs + gradients) * micro_batches,
    )


def _exchanged(graph: Graph, parts: Sequence[tuple[int, ...]], samples: int) -> tuple[Array, Array, Array]:
    """Bytes of a stage's inputs, of its outputs, and of the gradients of its inputs, at [b, c].

    A stage receives each input from the stage that makes it or from the caller; nothing is passed on.
    """
    home = {node: number for number, members in enumerate(parts) for node in members}
    inputs, outputs, gradients = np.zeros((3, len(parts) + 1, len(parts) + 1))
    for name, value in graph.values.items():
        maker = home.get(graph.maker.get(name, -1), -1)
        if maker < 0 and name not in graph.inputs:
            continue  # of a constant node, which every stage computes
        size = value.nbytes * (samples / graph.samples if value.batched else 1)
        readers = {home[reader] for reader in graph.users[name] if reader in home} - {maker}
        last = len(parts) if name in graph.outputs else max(readers, default=maker)
        for reader in readers:  # for the stages in which this reader is the first, and which do not make the value
            first = max(other for other in (*readers, maker) if other < reader)
            inputs[first + 1 : reader + 1, reader + 1 :] += size
            gradients[first + 1 : reader + 1, reader + 1 :] += size * value.differentiable
        if maker >= 0:
            outputs[: maker + 1, maker + 1 : last + 1] += size
    return inputs, outputs, gradients


def _described(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request, chosen: Candidate) -> Plan:
    """Return the plan of a candidate, with times that are simulated."""
    samples = request.batch // (chosen.pipelines * chosen.micro_batches)
    request = replace(request, schedule="gpipe")
    receives = count_received(graph, parts, chosen.cuts)
    stages = []
    for number, cut in enumerate(chosen.cuts):
        cut = replace(cut, recompute=chosen.micro_batches > 1)
        table = sum_costs(graph, parts, request.device, math.ceil(samples / cut.replicas))
        problem = pipeline_problem(table, request, chosen.micro_batches, chosen.pipelines)
        [times] = stage_times([cut], problem)
        left = len(chosen.cuts) - number
        stage = describe_stages(graph, parts, cut, problem, left, receives[number], times)
        memory = int(chosen.shares[cut.replicas].memory[cut.first, cut.last])
        stages.append(replace(stage, memory=memory))
    plan = Plan(
        stages=tuple(stages),
        pipelines=chosen.pipelines,
        micro_batches=chosen.micro_batches,
        samples=samples,
        schedule="gpipe",
        seconds=0.0,
        busy=(),
        bubble=0.0,
        limit=int(LIMIT * request.device.memory),
        divided=True,
    )
    timeline = simulate_step(plan.times, plan.schedule, plan.micro_batches)
    return replace(plan, seconds=timeline.seconds, busy=timeline.busy, bubble=timeline.bubble)
