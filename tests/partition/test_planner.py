"""Planner: its costs against direct sums, its stages against brute force, its limits, its refusals."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from graphs import chain, program

from suite.comm.partition.device import Device
from suite.comm.partition.graph import Graph, Node, Parameter, Value
from suite.comm.partition.orders import Schedule
from suite.comm.partition.planner.blocks import find_blocks
from suite.comm.partition.planner.components import find_components
from suite.comm.partition.planner.costs import sum_costs
from suite.comm.partition.planner.describe import stage_times
from suite.comm.partition.planner.request import Request, pipeline_problem
from suite.comm.partition.planner.search import _candidates, find_smallest
from suite.comm.partition.planner.stages import LIMIT, Costs, Cut, Problem, solve_stages
from suite.comm.partition.planning import plan
from suite.comm.partition.timeline import simulate_step
from suite.comm.projection.network import Level, Network
from suite.contract import UserError

SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe")
LINK = Level(latency=1e-6, bandwidth=1e9)
NETWORK = Network("test", LINK, LINK, None, "ring", 1e9)
ROOMY = Device(memory=2**40, flops=1.0, bandwidth=1.0)  # every operation of these graphs is measured


def request(devices: int, batch: int, **options: object) -> Request:
    """A request with much memory and a fast network."""
    usual = Request(devices, batch, ROOMY, NETWORK)
    return dataclasses.replace(usual, **options)  # type: ignore[arg-type]


def parts_of(graph: Graph, limit: int = 64) -> list[tuple[int, ...]]:
    """Return the blocks of a graph whose operations are measured."""
    seconds = [sum(ROOMY.seconds(graph, node, 1)) for node in graph.nodes]
    return list(find_blocks(graph, seconds.__getitem__, limit))


# --------------------------------------------------------------------------------------------------- levels 1 and 2
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("limit", [3, 64])
def test_blocks_hold_every_node_once_in_an_order_that_runs(seed: int, limit: int) -> None:
    graph = program(seed)
    parts = parts_of(graph, limit)
    nodes = [node for part in parts for node in part]
    assert sorted(nodes) == [node for node in range(len(graph.nodes)) if node not in graph.constants]
    assert len(parts) <= max(limit, 1)
    home = {node: number for number, part in enumerate(parts) for node in part}
    for name, readers in graph.users.items():
        maker = home.get(graph.maker.get(name, -1))
        assert maker is None or all(maker <= home[reader] for reader in readers if reader in home)


def test_an_operation_without_samples_joins_its_only_user() -> None:
    """A transposed weight with a gradient is computed early and used once, late."""
    values = {
        "x": Value(8),
        "t": Value(4, batched=False, differentiable=True),
        "a": Value(8, differentiable=True),
        "b": Value(8, differentiable=True),
    }
    nodes = (
        Node("transpose", "t", outputs=("t",), parameters=("w",)),
        Node("first", "op", inputs=("x",), outputs=("a",)),
        Node("second", "op", inputs=("a", "t"), outputs=("b",)),
    )
    graph = Graph(1, nodes, values, ("x",), ("b",), {"w": Parameter(4)})
    assert find_components(graph) == [(1,), (0, 2)]


def test_the_boundary_with_the_most_bytes_is_merged_first() -> None:
    graph = chain([1.0, 1.0, 0.9, 1.0])
    sizes = {"v0": 10, "v1": 1000, "v2": 10}
    values = {name: dataclasses.replace(v, nbytes=sizes.get(name, v.nbytes)) for name, v in graph.values.items()}
    graph = dataclasses.replace(graph, values=values)
    assert parts_of(graph, 3) == [(0,), (1, 2), (3,)]


@pytest.mark.quick
# ---------------------------------------------------------------------------------------------------------- the costs
@pytest.mark.parametrize("seed", range(20))
def test_costs_are_the_sums_of_what_a_stage_holds(seed: int) -> None:
    graph = program(seed)
    parts = parts_of(graph)
    table = sum_costs(graph, parts, ROOMY, 3)  # three samples: everything batched is three times as large
    for first, last in itertools.combinations(range(len(parts) + 1), 2):
        nodes = [node for part in parts[first:last] for node in part]
        whole = graph.with_constants(nodes)
        held = {name for node in whole for name in graph.nodes[node].parameters}
        assert table.forward[first, last] == pytest.approx(3 * sum(graph.nodes[n].seconds[0] for n in nodes))
        assert table.backward[first, last] == pytest.approx(6 * sum(graph.nodes[n].seconds[0] for n in nodes))
        assert table.saved[first, last] == pytest.approx(3 * sum(graph.nodes[n].saved for n in nodes))
        trainable = sum(graph.parameters[name].nbytes for name in held if graph.parameters[name].trainable)
        assert table.trainable[first, last] == trainable
        assert table.fixed[first, last] == sum(graph.parameters[name].nbytes for name in held) - trainable
        before = {name for part in parts[:first] for node in part for name in graph.nodes[node].outputs}
        later = {name for part in parts[first:] for node in part for name in graph.nodes[node].inputs}
        crossing = [graph.values[name] for name in before & (later | set(graph.outputs))]
        size = sum(value.nbytes * (3 if value.batched else 1) for value in crossing)
        assert table.entering[first, last] == size
        moving = [value for value in crossing if value.differentiable]
        assert table.returning[0, first] == sum(value.nbytes * (3 if value.batched else 1) for value in moving)


# --------------------------------------------------------------------------------------------------------- the stages
def best_by_trying(problem: Problem, devices: int, stages: int) -> float:
    """Return the shortest time of the busiest device over all cuts and numbers of replicas."""
    count = len(problem.costs.forward) - 1
    best = float("inf")
    for inner in itertools.combinations(range(1, count), stages - 1):
        bounds = (0, *inner, count)
        for replicas in itertools.product(problem.replicas, repeat=stages):
            if sum(replicas) == devices:
                busiest = max(problem.busy(stages - s, replicas[s])[0][bounds[s], bounds[s + 1]] for s in range(stages))
                best = min(best, float(busiest))
    return best


@pytest.mark.quick
@pytest.mark.parametrize("memory", [1e9, 900.0])
@pytest.mark.parametrize("seed", range(12))
def test_no_stages_are_better_than_the_planned_ones(seed: int, memory: float) -> None:
    graph = program(seed, 9)
    parts = parts_of(graph)
    problem = Problem(
        costs=sum_costs(graph, parts, ROOMY, 1),
        micro_batches=4,
        schedule="1f1b",
        memory=memory,
        send=lambda size: size * 1e-2,
        all_reduce=lambda size, replicas: size * 1e-3 * (replicas - 1),
        replicas=(1, 2, 3, 5),
    )
    found = solve_stages(problem, 5, 4)
    for stages, devices in itertools.product(range(1, 5), range(1, 6)):
        best = best_by_trying(problem, devices, stages) if stages <= devices else float("inf")
        same = [one for one in found if (len(one.cuts), one.devices) == (stages, devices)]
        assert bool(same) == np.isfinite(best)
        if same:
            assert min(one.seconds for one in same) == pytest.approx(best)
            cuts = min(same, key=lambda one: one.seconds).cuts
            assert [cut.first for cut in cuts[1:]] == [cut.last for cut in cuts[:-1]]
            assert sum(cut.replicas for cut in cuts) == devices and len(cuts) == stages


def shortest_by_trying(graph: Graph, wanted: Request) -> float:
    """Return the shortest simulated step over all cuts, replicas, pipelines and micro-batches."""
    parts = parts_of(graph)
    best = float("inf")
    for pipelines, micro_batches, table in _candidates(graph, parts, wanted):
        problem = pipeline_problem(table, wanted, micro_batches, pipelines)
        devices = wanted.devices // pipelines
        for stages in range(1, min(devices, len(parts)) + 1):
            for replicas in itertools.product(problem.replicas, repeat=stages):
                for inner in itertools.combinations(range(1, len(parts)), stages - 1):
                    if sum(replicas) == devices and wanted.stages in (None, stages):
                        spans = itertools.pairwise((0, *inner, len(parts)))
                        cuts = [Cut(*span, count, False) for span, count in zip(spans, replicas, strict=True)]
                        times = stage_times(cuts, problem)
                        best = min(best, simulate_step(times, problem.schedule, micro_batches).seconds)
    return best


@pytest.mark.parametrize("bandwidth", [3e9, 1e8])
@pytest.mark.parametrize("seed", range(6))
def test_no_step_is_much_shorter_than_the_planned_one(seed: int, bandwidth: float) -> None:
    """Messages and the averaging of gradients take from nothing to longer than a stage."""
    draw = random.Random(seed)
    graph = chain([draw.choice([1, 2, 3, 5, 8]) * 1e-3 for _ in range(7)])
    sizes = {name: Value(int(draw.choice([1e4, 1e5, 3e5, 1e6])), differentiable=True) for name in graph.values}
    weights = {f"p{number}": Parameter(int(draw.choice([1e4, 1e5, 1e6, 4e6]))) for number in range(7)}
    nodes = tuple(dataclasses.replace(node, parameters=(f"p{number}",)) for number, node in enumerate(graph.nodes))
    graph = dataclasses.replace(graph, nodes=nodes, values=sizes | {"x": Value(8)}, parameters=weights)
    link = Level(latency=5e-5, bandwidth=bandwidth)
    network = Network("slow", link, link, None, "ring", 1e12)
    wanted = Request(draw.choice([3, 4, 5]), 8, ROOMY, network, draw.choice([None, 2, 3]), 4, draw.choice(SCHEDULES))
    assert plan(graph, wanted).seconds <= 1.05 * shortest_by_trying(graph, wanted)


@pytest.mark.quick
def test_memory_by_hand() -> None:
    """One stage holds weights, gradients, two averages, and two micro-batches; recomputed, one of them.

    A micro-batch's own gradients count where they are larger than its activations.
    """
    entry = np.ones((1, 1))
    table = Costs(
        forward=entry,
        backward=entry,
        trainable=100 * entry,
        fixed=7 * entry,
        saved=1000 * entry,
        work=30 * entry,
        entering=10 * entry,
        returning=5 * entry,
        allowed=entry > 0,
    )
    assert table.memory(2, recompute=False) == 400 + 7 + 20 + 5 + 2000 + 30
    assert table.memory(2, recompute=True) == 400 + 7 + 20 + 5 + 1000 + 30
    heavy = dataclasses.replace(table, trainable=1500 * entry)
    assert heavy.memory(2, recompute=False) == 6000 + 7 + 20 + 5 + 1000 + 1500 + 30


@pytest.mark.quick
@pytest.mark.parametrize(
    "memory, sending, seconds",
    [
        (1e6, 0.1, 2 * (3 + 5) + 0.5 * 100 * 2),  # computing is slower than receiving
        (1e6, 2.0, 2 * 20 + 0.5 * 100 * 2),  # receiving 10 bytes is slower
        (1700 / LIMIT, 0.1, 2 * (3 + 5 + 3) + 0.5 * 100 * 2),  # too little memory for two micro-batches: forward again
    ],
)
def test_the_time_of_a_stage_by_hand(memory: float, sending: float, seconds: float) -> None:
    """Two replicas share three micro-batches, so that one of them has two."""
    entry = np.ones((2, 2))
    table = Costs(
        forward=3 * entry,
        backward=5 * entry,
        trainable=100 * entry,
        fixed=0 * entry,
        saved=1000 * entry,
        work=30 * entry,
        entering=10 * entry,
        returning=5 * entry,
        allowed=entry > 0,
    )
    problem = Problem(
        costs=table,
        micro_batches=3,
        schedule="gpipe",
        memory=memory,
        send=lambda size: size * sending,
        all_reduce=lambda size, replicas: 0.5 * size * replicas,
        replicas=(2,),
    )
    assert problem.busy(1, 2)[0][0, 1] == pytest.approx(seconds)


# ------------------------------------------------------------------------------------------------------------ the plan
def test_equal_layers_are_divided_equally() -> None:
    result = plan(chain([1.0] * 12), request(4, 8, stages=4, micro_batches=8))
    assert [len(stage.nodes) for stage in result.stages] == [3, 3, 3, 3]
    assert result.balance == pytest.approx(1.0)


@pytest.mark.sample(5)
@pytest.mark.parametrize("stages", range(2, 17))
def test_54_layers_of_four_parts_are_balanced(stages: int) -> None:
    """Stages of the 54-layer BERT are balanced, by times of one layer: attention, its output, and two of the MLP."""
    result = plan(chain([0.9, 0.3, 1.4, 1.4] * 54), request(stages, 64, stages=stages, micro_batches=64))
    assert result.balance <= 1.10


def test_stages_and_micro_batches_are_those_asked_for() -> None:
    graph = chain([1.0] * 8)
    result = plan(graph, request(8, 64, stages=2, micro_batches=16))
    assert len(result.stages) == 2 and result.pipelines * result.micro_batches == 16
    assert result.devices == 8 and result.samples * 16 == 64


@pytest.mark.quick
def test_a_replicated_stage_is_as_fast_as_the_others() -> None:
    """A layer that cannot be cut and takes twice as long gets two of three devices."""
    result = plan(chain([1.0, 2.0]), request(3, 12, stages=2, micro_batches=12))
    assert [stage.replicas for stage in result.stages] == [1, 2]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_plan_never_exceeds_its_memory(schedule: str) -> None:
    graph = chain([1.0] * 8, nbytes=16, parameters=100, saved=400)
    for memory in range(600, 8000, 200):
        device = dataclasses.replace(ROOMY, memory=memory)
        try:
            result = plan(graph, request(4, 8, device=device, schedule=schedule, micro_batches=8))
        except UserError:
            continue
        assert all(stage.memory <= LIMIT * memory for stage in result.stages)
        assert all(stage.recompute for stage in result.stages) or memory > 800


def test_a_stage_recomputes_only_if_it_must() -> None:
    graph = chain([1.0] * 4, nbytes=16, parameters=100, saved=400)
    tight = dataclasses.replace(ROOMY, memory=2500)
    wide = plan(graph, request(2, 4, stages=2, micro_batches=4))
    narrow = plan(graph, request(2, 4, stages=2, micro_batches=4, device=tight))
    assert not any(stage.recompute for stage in wide.stages)
    assert [stage.recompute for stage in narrow.stages] == [True, False]  # the last stage holds one micro-batch only
    assert narrow.stages[0].backward == pytest.approx(narrow.stages[0].forward * 2)


def test_a_model_that_does_not_fit_is_rejected_with_the_number_of_devices_that_suffice() -> None:
    graph = chain([1.0] * 8, nbytes=8, parameters=100, saved=8)
    device = dataclasses.replace(ROOMY, memory=1200)
    with pytest.raises(UserError, match="it needs at least") as caught:
        plan(graph, request(2, 8, device=device))
    enough = find_smallest(graph, parts_of(graph), request(2, 8, device=device))
    assert enough is not None and f"at least {enough} devices" in str(caught.value)
    plan(graph, request(enough, 8, device=device, micro_batches=8))
    with pytest.raises(UserError, match="does not fit"):
        plan(graph, request(enough - 1, 8, device=device))


def test_a_layer_that_fits_on_no_device_is_named() -> None:
    graph = chain([1.0] * 3, parameters=100)
    large = {**graph.parameters, "p1": Parameter(10**6)}
    device = dataclasses.replace(ROOMY, memory=10**5)
    with pytest.raises(UserError, match=r"the part at layer\.1 alone needs"):
        plan(dataclasses.replace(graph, parameters=large), request(2, 2, device=device))


def test_layers_that_cannot_be_cut_apart_are_measured_together() -> None:
    """Three layers of 1 GiB change one buffer; weights, sums, gradients and two averages are five times as much."""
    graph = chain([1.0] * 3, parameters=2**30)
    nodes = [dataclasses.replace(one, parameters=(*one.parameters, "b"), changes=("b",)) for one in graph.nodes]
    tied = dataclasses.replace(graph, nodes=tuple(nodes), parameters={**graph.parameters, "b": Parameter(0, False)})
    with pytest.raises(UserError, match=r"the part at layer\.0 alone needs 15 GiB and cannot be cut"):
        plan(tied, request(2, 2, device=dataclasses.replace(ROOMY, memory=8 * 2**30)))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stages": 5}, "stages=5: there are 4 devices"),
        ({"micro_batches": 3}, "micro_batches=3: does not divide the batch of 8"),
        ({"stages": 3}, "at most 2 stages"),
    ],
)
def test_requests_that_contradict_themselves(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(chain([1.0, 1.0]), request(4, 8, **options))


def test_no_cut_separates_operations_on_a_changing_buffer() -> None:
    graph = chain([1.0] * 6, parameters=8)
    nodes = list(graph.nodes)
    for index in (1, 3):
        nodes[index] = dataclasses.replace(nodes[index], parameters=("buffer",), changes=("buffer",))
    graph = dataclasses.replace(
        graph, nodes=tuple(nodes), parameters={**graph.parameters, "buffer": Parameter(8, False)}
    )
    for stages in (2, 3, 4):
        result = plan(graph, request(stages, 4, stages=stages, micro_batches=4))
        assert any({1, 3} <= set(stage.nodes) for stage in result.stages)
    with pytest.raises(UserError):
        plan(graph, request(5, 5, stages=5, micro_batches=5))
