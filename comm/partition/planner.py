"""Plans the stages of a model for a number of devices: levels 1 to 3, then the step time of each candidate."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from suite.comm.partition.blocks import blocks
from suite.comm.partition.costs import costs
from suite.comm.partition.device import Device
from suite.comm.partition.graph import Graph
from suite.comm.partition.orders import Schedule
from suite.comm.partition.plan import Plan, describe, step
from suite.comm.partition.stages import ADAM, Array, Costs, Problem, solve
from suite.comm.projection.cost import cost
from suite.comm.projection.network import Network, Place
from suite.comm.transport import entry
from suite.contract import UserError

BLOCKS = 64  # of the search for the numbers of stages, pipelines and micro-batches; RaNNC: 32
FINE = 256  # of the second search, with these numbers: 16 stages of 64 blocks cannot be balanced to 10 %
LARGEST = 64  # devices of one pipeline; more devices become more pipelines
POWERS = (1, 2, 4, 8, 16, 32, 64)  # replicas of a stage that the planner tries, in large pipelines
FEW = 8  # devices up to which every number of replicas is tried


@dataclass(frozen=True)
class Request:
    """What to plan for.

    Attributes:
        devices: number of devices.
        batch: samples of one step, of all devices together.
        device: the kind of device.
        network: between devices.
        stages: number of stages; None: the fastest.
        micro_batches: of one step, of all pipelines together; None: the fastest.
        schedule: `1f1b` or `gpipe`.
        state: bytes of optimizer state for a byte of trainable parameters.
    """

    devices: int
    batch: int
    device: Device
    network: Network
    stages: int | None = None
    micro_batches: int | None = None
    schedule: Schedule = "1f1b"
    state: float = ADAM


def plan(graph: Graph, request: Request) -> Plan:
    """Return the plan with the shortest predicted step.

    Raises:
        UserError: if the request contradicts itself, the model cannot be cut, or it does not fit.
    """
    _check(request)
    parts = _blocks(graph, request, max(BLOCKS, request.stages or 0))
    if request.stages is not None and request.stages > len(parts):
        raise UserError(
            f"stages={request.stages}: the model can be cut into at most {len(parts)} stages; type a smaller number"
        )
    best = _search(graph, parts, request)
    if best is None:
        raise UserError(_too_large(graph, parts, request))
    micro_batches = best.pipelines * best.micro_batches
    same = dataclasses.replace(request, stages=len(best.stages), micro_batches=micro_batches)
    return _search(graph, _blocks(graph, request, FINE), same, best) or best


def _blocks(graph: Graph, request: Request, limit: int) -> Sequence[tuple[int, ...]]:
    """At most `limit` blocks."""
    seconds = [sum(request.device.seconds(graph, node, graph.samples)) for node in graph.nodes]
    return blocks(graph, seconds.__getitem__, limit)


def _search(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request, best: Plan | None = None) -> Plan | None:
    """The plan with the shortest step, if it is shorter than that of `best`; otherwise `best`."""
    for pipelines, micro_batches, table in _candidates(graph, parts, request):
        devices = request.devices // pipelines
        problem = _problem(table, request, micro_batches, pipelines)
        limit = min(devices, len(parts)) if request.stages is None else request.stages
        for (stages, used), solution in solve(problem, devices, limit).items():
            if used != devices or stages != (request.stages or stages):
                continue
            if best is not None and solution.busiest >= best.seconds:
                continue
            if best is None or step(solution.cuts, problem).seconds < best.seconds:
                best = describe(graph, parts, solution.cuts, problem, request.batch, pipelines)
    return best


def _check(request: Request) -> None:
    """Reject a request that no plan can meet."""
    if request.devices < 1 or request.batch < 1:
        raise UserError("a plan needs at least one device and one sample")
    if request.stages is not None and not 1 <= request.stages <= request.devices:
        raise UserError(f"stages={request.stages}: there are {request.devices} devices; type 1 to {request.devices}")
    if request.micro_batches is not None and request.batch % request.micro_batches:
        raise UserError(f"micro_batches={request.micro_batches}: does not divide the batch of {request.batch} samples")


def _candidates(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request) -> Iterator[tuple[int, int, Costs]]:
    """Numbers of pipelines, of micro-batches in each, and the costs for that size of micro-batch."""
    tables: dict[int, Costs] = {}
    for pipelines in _divisors(request.devices):
        if request.devices // pipelines > max(LARGEST, request.stages or 0) or request.batch % pipelines:
            continue
        for micro_batches in _micro_batches(request, pipelines):
            samples = request.batch // (pipelines * micro_batches)
            if samples not in tables:
                tables[samples] = costs(graph, parts, request.device, samples)
            yield pipelines, micro_batches, tables[samples]


def _micro_batches(request: Request, pipelines: int) -> list[int]:
    """Possible numbers of micro-batches of each pipeline: the requested one, or powers of two that divide its batch."""
    if request.micro_batches is not None:
        return [request.micro_batches // pipelines] if request.micro_batches % pipelines == 0 else []
    share = request.batch // pipelines
    return [2**power for power in range(share.bit_length()) if share % 2**power == 0]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _problem(table: Costs, request: Request, micro_batches: int, pipelines: int) -> Problem:
    """The problem of one pipeline among `pipelines` equal ones."""
    network, devices = request.network, request.devices
    locals_ = min(network.ranks_per_host or devices, devices)
    one_host = locals_ == devices
    link = network.inner if one_host else network.outer  # neighbouring stages may lie on different hosts

    def send(size: Array) -> Array:
        return np.where(size > 0, link.latency + size / link.bandwidth, 0.0)

    def together(ranks: int) -> int:
        """How many replicas of a stage lie on one host."""
        if one_host:
            return ranks
        return math.gcd(locals_, ranks) if ranks == devices else 1  # a host has several stages of one pipeline

    def all_reduce(size: Array, replicas: int) -> Array:
        ranks = replicas * pipelines
        if ranks == 1:
            return np.zeros_like(size)

        def seconds(payload: int) -> float:
            item = entry("all_reduce", "gradients", "float32", payload, ranks)
            return cost(item, Place(ranks, together(ranks)), network).seconds(network)

        unit = 2**20
        start = seconds(0)
        return start + size * ((seconds(unit) - start) / unit)

    replicas = tuple(range(1, devices + 1)) if devices // pipelines <= FEW else POWERS
    return Problem(
        costs=table,
        micro_batches=micro_batches,
        schedule=request.schedule,
        memory=request.device.memory,
        send=send,
        all_reduce=all_reduce,
        replicas=tuple(number for number in replicas if number <= devices // pipelines),
        state=request.state,
    )


def smallest(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request) -> int | None:
    """The smallest number of devices on which the model fits, with micro-batches of one sample; None if none does."""
    table = costs(graph, parts, request.device, 1)
    stages = request.stages or len(parts)
    problem = _problem(table, dataclasses.replace(request, devices=len(parts)), max(request.batch, 1), 1)
    solutions = solve(problem, len(parts), min(stages, len(parts)))
    return min((devices for (count, devices) in solutions if count == (request.stages or count)), default=None)


def _too_large(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request) -> str:
    """Why there is no plan, and what would help."""
    room = f"{request.device.memory / 2**30:.3g} GiB"
    enough = smallest(graph, parts, request)
    if enough is not None and enough > request.devices:
        return (
            f"the model does not fit on {request.devices} devices of {room}, even with activations computed twice; "
            f"it needs at least {enough} devices"
        )
    if enough is not None:
        return (
            f"no plan fits {request.devices} devices of {room} with this batch and number of micro-batches; {enough} "
            "devices suffice with micro-batches of one sample: leave out micro_batches, or type a larger one"
        )
    table = costs(graph, parts, request.device, 1)
    problem = _problem(table, request, 1, 1)
    alone = problem.costs.memory(1, True, request.state)[np.arange(len(parts)), np.arange(1, len(parts) + 1)]
    heaviest = int(alone.argmax())
    layers = graph.nodes[parts[heaviest][0]].layer or graph.nodes[parts[heaviest][0]].name
    return (
        f"the model does not fit on any number of devices of {room}: the part at {layers} alone needs "
        f"{alone[heaviest] / 2**30:.3g} GiB and cannot be cut"
    )
