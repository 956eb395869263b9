"""Describes the stages that the planner found, and predicts the time of a step."""

from collections.abc import Sequence

from suite.comm.partition.graph import Graph
from suite.comm.partition.orders import in_flight
from suite.comm.partition.plan import Plan, Stage
from suite.comm.partition.planner.costs import list_spans
from suite.comm.partition.planner.stages import LIMIT, Cut, Problem
from suite.comm.partition.timeline import StageTimes, simulate_step


def describe_plan(
    graph: Graph, blocks: Sequence[tuple[int, ...]], cuts: Sequence[Cut], problem: Problem, batch: int, pipelines: int
) -> Plan:
    """Return the plan of one solution of the dynamic programme.

    Args:
        graph: of the model.
        blocks: that are cut.
        cuts: the stages, in order.
        problem: that the cuts solve.
        batch: samples of one step, of all pipelines together.
        pipelines: number of equal pipelines.
    """
    times = stage_times(cuts, problem)
    receives = count_received(graph, blocks, cuts)
    stages = tuple(
        describe_stages(graph, blocks, cut, problem, len(cuts) - number, receives[number], times[number])
        for number, cut in enumerate(cuts)
    )
    timeline = simulate_step(times, problem.schedule, problem.micro_batches)
    return Plan(
        stages=stages,
        pipelines=pipelines,
        micro_batches=problem.micro_batches,
        samples=batch // (pipelines * problem.micro_batches),
        schedule=problem.schedule,
        seconds=timeline.seconds,
        busy=timeline.busy,
        bubble=timeline.bubble,
        limit=int(LIMIT * problem.memory),
    )


def stage_times(cuts: Sequence[Cut], problem: Problem) -> list[StageTimes]:
    """Return the times of each stage of a solution."""
    return [_times(cut, problem) for cut in cuts]


def _times(cut: Cut, problem: Problem) -> StageTimes:
    costs, place = problem.costs, (cut.first, cut.last)
    forward = float(costs.forward[place])
    return StageTimes(
        forward=forward,
        backward=float(costs.backward[place]) + (forward if cut.recompute else 0.0),
        receive=float(problem.send(costs.entering[place])),
        receive_back=float(problem.send(costs.returning[place])),
        all_reduce=float(problem.all_reduce(costs.trainable[place], cut.replicas)),
        replicas=cut.replicas,
    )


def count_received(graph: Graph, blocks: Sequence[tuple[int, ...]], cuts: Sequence[Cut]) -> list[tuple[str, ...]]:
    """Return the names of the values that each stage receives from the stage before it."""
    home = {node: number for number, members in enumerate(blocks) for node in members}
    uses = list_spans(graph, home, len(blocks))
    return [tuple(name for name, first, last in uses if first < cut.first <= last) for cut in cuts]


def describe_stages(
    graph: Graph,
    blocks: Sequence[tuple[int, ...]],
    cut: Cut,
    problem: Problem,
    stages_left: int,
    receives: tuple[str, ...],
    times: StageTimes,
) -> Stage:
    """One stage of a plan.

    Args:
        graph: of the model.
        blocks: that are cut.
        cut: the stage.
        problem: that it belongs to.
        stages_left: stages from this one to the last, both included.
        receives: names of the values that it receives.
        times: of the stage.
    """
    costs, place = problem.costs, (cut.first, cut.last)
    held = in_flight(problem.schedule, stages_left, cut.replicas, problem.micro_batches)
    nodes = graph.with_constants(node for members in blocks[cut.first : cut.last] for node in members)
    layers = [graph.nodes[node].layer or graph.nodes[node].name for node in nodes]
    return Stage(
        nodes=nodes,
        first=layers[0],
        last=layers[-1],
        replicas=cut.replicas,
        recompute=cut.recompute,
        parameters=int(costs.trainable[place] + costs.fixed[place]),
        memory=int(costs.memory(held, cut.recompute, problem.state)[place]),
        forward=times.forward,
        backward=times.backward,
        receives=receives,
        received=int(costs.entering[place]),
        returned=int(costs.returning[place]),
        receive=times.receive,
        receive_back=times.receive_back,
        all_reduce=times.all_reduce,
    )
