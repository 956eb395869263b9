"""Plans the stages of a model for a number of devices: levels 1 to 3, then the step time of each candidate."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from suite.comm.partition.graph import Graph
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.blocks import find_blocks
from suite.comm.partition.planner.costs import sum_costs
from suite.comm.partition.planner.describe import describe_plan, stage_times
from suite.comm.partition.planner.improve import improve_cuts
from suite.comm.partition.planner.request import Request, check_stages, pipeline_problem
from suite.comm.partition.planner.stages import FEW, Costs, Cut, Problem, solve_stages
from suite.comm.partition.timeline import bound_step, simulate_step
from suite.contract import UserError

BLOCKS = 64  # of the search for the numbers of stages, pipelines and micro-batches; RaNNC: 32
FINE = 256  # of the second search, with these numbers: 16 stages of 64 blocks cannot be balanced to 10 %
NEAR = 1.25  # of the shortest step so far: solutions whose bound is larger are left out
STARTS = 20  # solutions whose cuts are moved
SLOWEST = 1.5  # of the shortest step: cuts of slower solutions stay; in 485 random problems, none became the best
MOST_DIVISORS = 12  # of a batch, that are tried as numbers of micro-batches
LARGEST = 64  # devices of one pipeline; more devices become more pipelines


@dataclass(frozen=True)
class Found:
    """A solution of one pipeline among `pipelines`, with the seconds of a step."""

    seconds: float
    cuts: Sequence[Cut]
    problem: Problem
    pipelines: int


def plan(graph: Graph, request: Request) -> Plan:
    """Return the plan with the shortest predicted step.

    Raises:
        UserError: if the model cannot be cut or does not fit.
    """
    parts = _blocks(graph, request, max(BLOCKS, request.stages or 0))
    check_stages(request, len(parts))
    best = _search(graph, parts, request)
    if best is None:
        raise UserError(_too_large(graph, parts, request))
    micro_batches = best.pipelines * best.micro_batches
    same = dataclasses.replace(request, stages=len(best.stages), micro_batches=micro_batches)
    return _search(graph, _blocks(graph, request, FINE), same, best) or best


def _blocks(graph: Graph, request: Request, limit: int) -> Sequence[tuple[int, ...]]:
    """At most `limit` blocks."""
    seconds = [sum(request.device.seconds(graph, node, graph.samples)) for node in graph.nodes]
    return find_blocks(graph, seconds.__getitem__, limit)


def _search(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request, best: Plan | None = None) -> Plan | None:
    """Return the plan with the shortest step, if it is shorter than that of `best`; otherwise `best`."""
    shortest = best.seconds if best else float("inf")
    found: list[Found] = []
    for pipelines, micro_batches, table in _candidates(graph, parts, request):
        devices = request.devices // pipelines
        problem = pipeline_problem(table, request, micro_batches, pipelines)
        limit = min(devices, len(parts)) if request.stages is None else request.stages
        for filling in (False, True):
            for solution in solve_stages(problem, devices, limit, filling=filling):
                if solution.devices != devices or len(solution.cuts) != (request.stages or len(solution.cuts)):
                    continue
                times = stage_times(solution.cuts, problem)
                if bound_step(times, micro_batches) > NEAR * shortest:
                    continue
                seconds = simulate_step(times, problem.schedule, micro_batches).seconds
                found.append(Found(seconds, solution.cuts, problem, pipelines))
                shortest = min(shortest, seconds)
    near = (one for one in found if one.seconds <= SLOWEST * shortest)
    for one in sorted(near, key=lambda one: one.seconds)[:STARTS]:
        cuts, seconds = one.cuts, one.seconds
        if request.devices // one.pipelines <= FEW:
            cuts, seconds = improve_cuts(one.problem, cuts, seconds)
        if best is None or seconds < best.seconds:
            best = describe_plan(graph, parts, cuts, one.problem, request.batch, one.pipelines)
    return best


def _candidates(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request) -> Iterator[tuple[int, int, Costs]]:
    """Numbers of pipelines, of micro-batches in each, and the costs for that size of micro-batch."""
    tables: dict[int, Costs] = {}
    for pipelines in _divisors(request.devices):
        if request.devices // pipelines > max(LARGEST, request.stages or 0) or request.batch % pipelines:
            continue
        for micro_batches in _micro_batches(request, pipelines):
            samples = request.batch // (pipelines * micro_batches)
            if samples not in tables:
                tables[samples] = sum_costs(graph, parts, request.device, samples)
            yield pipelines, micro_batches, tables[samples]


def _micro_batches(request: Request, pipelines: int) -> list[int]:
    """Possible numbers of micro-batches of each pipeline: the requested one, or divisors of its batch.

    If there are many divisors, only powers of two are tried.
    """
    if request.micro_batches is not None:
        return [request.micro_batches // pipelines] if request.micro_batches % pipelines == 0 else []
    divisors = _divisors(request.batch // pipelines)
    return divisors if len(divisors) <= MOST_DIVISORS else [size for size in divisors if size & (size - 1) == 0]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def find_smallest(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request) -> int | None:
    """Find the least number of devices on which the model fits, with micro-batches of one sample, or None."""
    table = sum_costs(graph, parts, request.device, 1)
    stages = request.stages or len(parts)
    problem = pipeline_problem(table, dataclasses.replace(request, devices=len(parts)), max(request.batch, 1), 1)
    solutions = solve_stages(problem, len(parts), min(stages, len(parts)))
    fitting = [one for one in solutions if len(one.cuts) == (request.stages or len(one.cuts))]
    return min((one.devices for one in fitting), default=None)


def _too_large(graph: Graph, parts: Sequence[tuple[int, ...]], request: Request) -> str:
    """Why there is no plan, and what would help."""
    room = f"{request.device.memory / 2**30:.3g} GiB"
    enough = find_smallest(graph, parts, request)
    if enough is not None and enough > request.devices:
        return (
            f"the model does not fit on {request.devices} devices of {room}, even with activations computed twice; "
            f"it needs at least {enough} devices"
        )
    if enough is not None and request.micro_batches is not None:
        return (
            f"no plan fits {request.devices} devices of {room} with this batch and number of micro-batches; {enough} "
            "devices suffice with micro-batches of one sample: leave out micro_batches, or set a larger one"
        )
    if enough is not None:
        return (
            f"no plan fits {request.devices} devices of {room} with a batch of {request.batch}; {enough} devices "
            "suffice with micro-batches of one sample: set micro_batches, or another batch"
        )
    if request.stages is not None:
        free = find_smallest(graph, parts, dataclasses.replace(request, stages=None))
        if free is not None:
            return (
                f"the model does not fit into {request.stages} stages on devices of {room}, even with activations "
                f"computed twice; with more stages, {free} devices suffice: leave out stages, or set a larger number"
            )
    table = sum_costs(graph, parts, request.device, 1)
    problem = pipeline_problem(table, request, 1, 1)
    cuts = np.flatnonzero(problem.costs.allowed[0])
    alone = problem.costs.memory(1, True, request.state)[cuts[:-1], cuts[1:]]
    heaviest = int(alone.argmax())
    first = graph.nodes[parts[cuts[heaviest]][0]]
    place = first.layer or first.name
    return (
        f"the model does not fit on any number of devices of {room}: the part at {place} alone needs "
        f"{alone[heaviest] / 2**30:.3g} GiB and cannot be cut"
    )
