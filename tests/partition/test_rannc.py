"""RaNNC's original rules: each by hand or against trying everything, and the flaw of its dynamic programming."""

import dataclasses
import itertools

import numpy as np
import pytest
from graphs import chain, program

from suite.comm.partition.device import Device
from suite.comm.partition.graph import Graph, Node, Parameter, Value
from suite.comm.partition.planner.costs import sum_costs
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planner.stages import Cut
from suite.comm.partition.planning import plan
from suite.comm.partition.rannc import _exchanged
from suite.comm.partition.rannc.blocks import MANY, MOST, form_blocks
from suite.comm.partition.rannc.groups import Groups
from suite.comm.partition.rannc.stages import Shares, estimate_seconds
from suite.comm.projection.network import Level, Network
from suite.contract import UserError

SECOND = 20 * 2**30  # bytes that take RaNNC a second from stage to stage; half as many for an all-reduce
LINK = Level(latency=0.0, bandwidth=SECOND)
NETWORK = Network("test", LINK, LINK, None, "ring", 1e9)
ROOMY = Device(memory=2**60, flops=1.0, bandwidth=1.0)  # every operation of these graphs is measured


def request(devices: int, batch: int, **options: object) -> Request:
    """A request by RaNNC's rules, with much memory and RaNNC's speed of messages."""
    usual = Request(devices, batch, ROOMY, NETWORK, rannc_compat=True)
    return dataclasses.replace(usual, **options)  # type: ignore[arg-type]


def blocks_of(graph: Graph, room: float = 1e30) -> list[tuple[int, ...]]:
    """RaNNC's blocks for micro-batches of one sample."""
    return list(form_blocks(graph, request(1, 32), room))


def dataflow(reads: dict[str, str], times: dict[str, float], sizes: dict[str, int] | None = None) -> Graph:
    """Operations named by letters, each with the letters that it reads; sizes of values in bytes."""
    values = {"x": Value(0)} | {name: Value((sizes or {}).get(name, 0), differentiable=True) for name in reads}
    nodes = tuple(
        Node(name, "op", name, tuple(others) or ("x",), (name,), seconds=(times.get(name, 1.0), 0.0))
        for name, others in reads.items()
    )
    return Graph(1, nodes, values, ("x",), (list(reads)[-1],))


def lengths(seconds: list[float], messages: list[float]) -> Graph:
    """A chain of layers with messages of so many of RaNNC's seconds between them."""
    graph = chain(seconds)
    sent = {f"v{number}": Value(int(SECOND * time), differentiable=True) for number, time in enumerate(messages)}
    return dataclasses.replace(graph, values={**graph.values, "x": Value(0), **sent})


# ------------------------------------------------------------------------------------------------------------- blocks
def test_a_component_is_merged_with_the_reader_that_receives_the_most() -> None:
    """Both readers of `a` are as long, and `c`, which is no neighbour in the program, receives more bytes."""
    values = {
        name: Value(size, differentiable=True) for name, size in zip("xuvbcdef", (0, 1, 8, 0, 0, 0, 0, 0), strict=True)
    }
    nodes = (
        Node("a", "op", "a", ("x",), ("u", "v"), seconds=(0.5, 0.0)),
        Node("b", "op", "b", ("u",), ("b",), seconds=(1.0, 0.0)),
        Node("c", "op", "c", ("v",), ("c",), seconds=(1.0, 0.0)),
        Node("d", "op", "d", ("b", "c"), ("d",), seconds=(2.0, 0.0)),
        Node("e", "op", "e", ("d",), ("e",), seconds=(2.0, 0.0)),
        Node("f", "op", "f", ("e",), ("f",), seconds=(2.0, 0.0)),
    )
    assert (0, 2) in blocks_of(Graph(1, nodes, values, ("x",), ("f",)))
    other = {**values, "u": Value(16, differentiable=True)}
    assert (0, 1) in blocks_of(Graph(1, nodes, other, ("x",), ("f",)))


def test_no_block_is_merged_beyond_the_mean_and_two_standard_deviations() -> None:
    """Nineteen layers of 1 and one of 4: the bound is 1.15 + 2 * 0.65 = 2.46, then, of nine pairs, 2.09 + 2 * 0.70."""
    assert blocks_of(chain([0.5] * 19 + [2.0])) == [*((node, node + 1) for node in range(0, 18, 2)), (18,), (19,)]
    # equal layers are as long as the bound
    assert len(blocks_of(chain([1.0] * 20))) == 20


def test_a_pair_with_a_path_through_a_third_is_not_merged() -> None:
    """`a` sends most to `c`, but `b` lies on another path between them."""
    graph = dataflow({"a": "", "b": "a", "c": "ab", "d": "c", "e": "d", "f": "e"}, {"a": 0.1, "f": 9.0}, {"a": 8})
    merged = next(block for block in blocks_of(graph) if 0 in block)
    assert merged[:2] == (0, 1)


def test_two_pairs_do_not_wait_for_each_other() -> None:
    """After `a` and `c` are merged, `b` and `d` may not be: each pair would need the other's result."""
    reads = {"a": "", "b": "", "c": "ab", "d": "ab", "e": "cd", "f": "e"}
    graph = dataflow(reads, {"a": 0.1, "b": 0.2, "e": 9.0, "f": 9.0}, {"a": 8, "b": 8})
    _runs(graph, blocks_of(graph))


def test_a_pair_that_does_not_fit_is_not_merged() -> None:
    """Two layers of 100 bytes need 800 bytes with gradients and two averages."""
    graph = chain([0.1] * 8 + [9.0], parameters=100)
    assert max(map(len, blocks_of(graph, 801.0))) == 2
    assert max(map(len, blocks_of(graph, 800.0))) == 1


def test_small_blocks_are_merged_with_their_shorter_neighbour_until_32_are_left() -> None:
    """Layers that grow by equal steps have no pair below the bound but the shortest ones."""
    parts = blocks_of(chain([1.0] * (MOST + 2)))
    assert len(parts) == MOST
    times = [1.0] * (MOST + 1)
    times[10], times[9], times[11] = 0.9, 0.99, 0.98
    assert (10, 11) in blocks_of(chain(times))


def test_above_200_components_each_of_a_pair_is_compared_with_the_bound() -> None:
    """Then pairs of equal layers are merged, whatever memory they need; on the next level, none fits."""
    few, many = (chain([1.0] * count, parameters=100) for count in (MANY, MANY + 1))
    assert [len(part) for part in blocks_of(few, 800.0)] == [1] * MANY
    assert sorted(len(part) for part in blocks_of(many, 800.0)) == [1] + [2] * (MANY // 2)


def _runs(graph: Graph, parts: list[tuple[int, ...]]) -> None:
    """Check that every node is in one block, and that blocks can run in their order."""
    nodes = [node for part in parts for node in part]
    assert sorted(nodes) == [node for node in range(len(graph.nodes)) if node not in graph.constants]
    home = {node: number for number, part in enumerate(parts) for node in part}
    for name, readers in graph.users.items():
        maker = home.get(graph.maker.get(name, -1), -1)
        assert all(maker <= home[reader] for reader in readers if reader in home)


@pytest.mark.parametrize("seed", range(30))
def test_blocks_hold_every_node_once_in_an_order_that_runs(seed: int) -> None:
    graph = program(seed, 60)
    parts = blocks_of(graph)
    _runs(graph, parts)
    assert len(parts) <= MOST


def test_some_block_has_a_gap_in_the_program() -> None:
    gaps = [part for seed in range(5) for part in blocks_of(program(seed, 60)) if len(part) <= part[-1] - part[0]]
    assert gaps


@pytest.mark.parametrize("seed", range(10))
def test_convex_pairs_against_all_paths(seed: int) -> None:
    """Between merges, every pair is compared with a search of all paths."""
    graph = program(seed, 20)
    groups = Groups(graph, [(node,) for node in range(20) if node not in graph.constants], ROOMY, 1)
    while pairs := [(first, second) for first in groups.order() for second in groups.readers(first)]:
        for first, second in pairs:
            reached, waiting = set[int](), [reader for reader in groups.readers(first) if reader != second]
            while waiting:
                group = waiting.pop()
                reached.add(group)
                waiting += [reader for reader in groups.readers(group) if reader not in reached]
            assert groups.convex(first, second) == (second not in reached)
        groups.merge(*next(pair for pair in pairs if groups.convex(*pair)))
        _runs(graph, groups.blocks())


# ------------------------------------------------------------------------------------------------------------- stages
@pytest.mark.parametrize("seed", range(10))
def test_inputs_and_outputs_are_those_that_a_stage_reads_and_makes(seed: int) -> None:
    graph = program(seed)
    parts = blocks_of(graph)
    inputs, outputs, gradients = _exchanged(graph, parts, 3)
    made = {node: set(graph.nodes[node].outputs) for node in range(len(graph.nodes)) if node not in graph.constants}
    constant = {name for node in graph.constants for name in graph.nodes[node].outputs}
    for first, last in itertools.combinations(range(len(parts) + 1), 2):
        inside = {node for part in parts[first:last] for node in part}
        after = {node for part in parts[last:] for node in part}
        own = set[str]().union(*(made[node] for node in inside))
        read = {name for node in inside for name in graph.nodes[node].inputs} - own - constant
        wanted = {name for node in after for name in graph.nodes[node].inputs} | set(graph.outputs)

        def size(names: set[str]) -> float:
            return sum(graph.values[name].nbytes * (3 if graph.values[name].batched else 1) for name in names)

        assert inputs[first, last] == size(read)
        assert outputs[first, last] == size(own & wanted)
        assert gradients[first, last] == size({name for name in read if graph.values[name].differentiable})


def _value(cuts: list[tuple[int, int]], times: list[float], messages: list[float]) -> float:
    """RaNNC's value of a chain: its longest forward pass and its longest backward pass, with messages."""
    padded = [0.0, *messages, 0.0]
    passes = [sum(times[first:last]) + padded[first] + padded[last] for first, last in cuts]
    return 2 * max(passes)


def _cuts(graph: Graph, wanted: Request) -> list[tuple[int, int]]:
    return [(stage.nodes[0], stage.nodes[-1] + 1) for stage in plan(graph, wanted).stages]


def test_the_flaw_lets_a_worse_chain_replace_a_better_one() -> None:
    """RaNNC's own value of its stages is 14 s; another chain has 10 s, and the corrected planner takes it."""
    times, messages = [3.0, 1.0, 2.0, 1.0], [2.0, 2.0, 3.0]
    graph, original = lengths(times, messages), request(3, 1, stages=3, micro_batches=1)
    corrected = dataclasses.replace(original, rannc_compat=False)
    bounds = [(0, *inner, 4) for inner in itertools.combinations(range(1, 4), 2)]
    values = [_value(list(itertools.pairwise(bound)), times, messages) for bound in bounds]
    assert min(values) == 10
    assert _value(_cuts(graph, original), times, messages) == 14
    assert _value(_cuts(graph, corrected), times, messages) == 10
    assert plan(graph, original).seconds > plan(graph, corrected).seconds


def test_the_flaw_by_hand() -> None:
    """An entry for two stages up to the third of four layers loses the message that makes it bad.

    [0] [1 2] is stored with 2 (3 + 2 + 3) = 16. Then [0 1] [2] has 2 (2 + 2 + 3) = 14 and replaces it; its longest pass
    is stored as 4, without messages. For three stages, [0] [1] [2 3] is stored with 2 (3 + 2) = 10. Then [0 1] [2] [3]
    has 2 max(4, 1 + 3) = 8 and replaces it, although what is stored is max(8, 14).
    """
    graph = lengths([3.0, 1.0, 2.0, 1.0], [2.0, 2.0, 3.0])
    assert _cuts(graph, request(3, 1, stages=3, micro_batches=1)) == [(0, 2), (2, 3), (3, 4)]


def test_the_larger_value_is_stored() -> None:
    """[0] [1] [2 3] has 2 · 3 = 6 of its own, but the 2 (3 + 4) = 14 of [0] is stored, so that 8 replaces it.

    The 8 is that of [0 1] [2] [3], in which each stage takes 4 with messages.
    """
    graph = lengths([3.0, 1.0, 1.0, 1.0], [4.0, 0.0, 3.0])
    assert _cuts(graph, request(3, 1, stages=3, micro_batches=1)) == [(0, 2), (2, 3), (3, 4)]


def test_without_messages_and_with_equal_passes_no_chain_is_better() -> None:
    """Then one longest pass decides, and the flaw does nothing."""
    for times in itertools.product([1.0, 2.0, 4.0], repeat=5):
        graph = chain(list(times))
        values = [
            _value(list(itertools.pairwise((0, *inner, 5))), list(times), [0.0] * 4)
            for inner in itertools.combinations(range(1, 5), 2)
        ]
        found = _cuts(graph, request(3, 1, stages=3, micro_batches=1))
        assert _value(found, list(times), [0.0] * 4) == min(values)


def test_devices_of_a_stage_are_powers_of_two() -> None:
    """A layer that takes three times as long may not have three of four devices. Seven devices have no such sum."""
    graph, wanted = chain([1.0, 3.0]), request(4, 12, stages=2, micro_batches=1)
    assert [stage.replicas for stage in plan(graph, wanted).stages] == [2, 2]
    with pytest.raises(UserError, match="no stages that fit on 7 devices"):
        plan(graph, request(7, 28, stages=2))


def test_the_search_ends_with_the_fewest_stages_that_fit() -> None:
    """Four stages would be faster, but two fit."""
    graph = chain([1.0] * 4, parameters=100)
    device = dataclasses.replace(ROOMY, memory=900 / 0.9)
    result = plan(graph, request(4, 8, device=device))
    assert len(result.stages) == 2
    assert len(plan(graph, request(4, 8)).stages) == 1


@pytest.mark.parametrize("room, stages", [(401.0, 2), (400.0, None)])
def test_a_stage_needs_less_than_nine_tenths_of_the_memory(room: float, stages: int | None) -> None:
    """A layer of 100 bytes needs 400, whatever the optimizer's state."""
    graph = chain([1.0] * 2, parameters=100)
    graph = dataclasses.replace(graph, values={**graph.values, "x": Value(0)})
    wanted = request(2, 2, device=dataclasses.replace(ROOMY, memory=room / 0.9), state=9.0)
    if stages:
        result = plan(graph, wanted)
        assert len(result.stages) == stages and [stage.memory for stage in result.stages] == [400, 400]
    else:
        with pytest.raises(UserError, match="rannc_compat: RaNNC's rules find no stages that fit on 2 devices"):
            plan(graph, wanted)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_stages_recompute_if_there_are_several_micro_batches(micro_batches: int) -> None:
    result = plan(chain([1.0] * 4), request(2, 4, stages=2, micro_batches=micro_batches))
    assert [stage.recompute for stage in result.stages] == [micro_batches > 1] * 2
    assert [stage.backward / stage.forward for stage in result.stages] == [1 + (micro_batches > 1)] * 2


@pytest.mark.parametrize("batch, micro_batches", [(2, 1), (4, 4)])
def test_recomputation_counts_in_the_choice_of_micro_batches(batch: int, micro_batches: int) -> None:
    """n micro-batches take (n + 1) / n (1 + 1 + 1) s a sample of two stages, and one takes 2 (1 + 1) s."""
    assert plan(chain([1.0] * 2), request(2, batch, stages=2)).micro_batches == micro_batches


def test_the_devices_of_a_stage_divide_each_micro_batch() -> None:
    """Each of four devices runs one sample of two micro-batches: three phases of 1 s forward and 2 s backward."""
    result = plan(chain([1.0] * 2), request(4, 4, stages=2, micro_batches=2))
    assert [(stage.replicas, stage.forward, stage.backward) for stage in result.stages] == [(2, 1.0, 2.0)] * 2
    assert (result.seconds, result.busy) == (9.0, (6.0, 6.0))


def test_blocks_use_nine_tenths_of_the_memory() -> None:
    """Nine layers stay alone if no two fit together."""
    graph = chain([0.1] * 8 + [9.0], parameters=100)
    for room, most in ((800.0, 9), (801.0, 5)):
        device = dataclasses.replace(ROOMY, memory=room / 0.9)
        with pytest.raises(UserError, match=f"at most {most} stages"):
            plan(graph, request(16, 16, stages=10, device=device))


def test_memory_by_hand() -> None:
    """Two micro-batches of four samples on two devices: weights four times, what one keeps, and messages of both."""
    graph = chain([1.0] * 2, nbytes=10, parameters=100, saved=50)
    result = plan(graph, request(4, 8, stages=2, micro_batches=2))
    # shares of two samples: values of 20 bytes, inputs x of 16 bytes, 100 bytes kept
    first, second = 400 + 100 + 2 * (16 + 20), 400 + 100 + 2 * (20 + 20 + 20)
    assert [stage.memory for stage in result.stages] == [first, second]


def test_a_pipeline_takes_few_hosts_and_stages_more_than_devices_on_the_hosts_before() -> None:
    network = dataclasses.replace(NETWORK, ranks_per_host=2)
    graph = chain([1.0] * 4, parameters=100)
    small = dataclasses.replace(ROOMY, memory=500 / 0.9)  # one layer on each device
    wide = plan(graph, request(8, 8, network=network))
    narrow = plan(graph, request(8, 8, network=network, device=small))
    assert (wide.pipelines, [stage.replicas for stage in wide.stages]) == (4, [2])
    assert (narrow.pipelines, [stage.replicas for stage in narrow.stages]) == (2, [1] * 4)


def test_the_estimate_by_hand() -> None:
    """Two stages and two micro-batches: the first alone, both, the second alone; then an all-reduce of 7 s."""
    entry = np.ones((3, 3))
    forward, backward, messages = 1 * entry, 3 * entry, 0.5 * entry
    forward[1, 2], backward[1, 2] = 2.0, 2.0
    shares = {1: Shares(forward, backward, messages, 0 * entry)}
    cuts = [Cut(0, 1, 1, False), Cut(1, 2, 1, False)]
    assert estimate_seconds(cuts, shares, 2, 7.0) == (1.5 + 3.5) + (2.5 + 3.5) + (2.5 + 2.5) + 7.0


def test_messages_and_all_reduce_do_not_depend_on_the_network() -> None:
    """A slow network changes the times that the plan shows, not the stages."""
    slow = dataclasses.replace(NETWORK, inner=Level(1.0, 1.0), outer=Level(1.0, 1.0))
    for times in itertools.product([1.0, 3.0], repeat=4):
        graph = lengths(list(times), [1.0, 0.5, 0.25])
        fast, late = (plan(graph, request(4, 8, stages=2, network=network)) for network in (NETWORK, slow))
        assert [stage.nodes for stage in fast.stages] == [stage.nodes for stage in late.stages]
        assert fast.micro_batches == late.micro_batches and late.seconds > 2 * fast.seconds


def test_averaging_gradients_is_outside_the_search() -> None:
    """Equal times decide although the last layer has nearly all parameters; the corrected planner avoids it."""
    graph = chain([1.0] * 4, parameters=8)
    graph = dataclasses.replace(graph, parameters={**graph.parameters, "p3": Parameter(100 * SECOND)})
    original = request(4, 4, stages=2, micro_batches=1)
    assert [len(stage.nodes) for stage in plan(graph, original).stages] == [2, 2]
    assert sum_costs(graph, [(0,), (1,), (2,), (3,)], ROOMY, 1).trainable[3, 4] == 100 * SECOND
    free = plan(graph, dataclasses.replace(original, rannc_compat=False))
    assert free.stages[-1].replicas == 1 and free.pipelines == 1


def test_a_plan_by_these_rules_says_that_it_cannot_be_trained() -> None:
    result = plan(chain([1.0] * 4), request(2, 4, stages=2, micro_batches=2))
    assert "by RaNNC's rules" in str(result)
    with pytest.raises(UserError, match="can be read but not trained; leave out rannc_compat"):
        _ = result.grid


def test_more_stages_than_blocks() -> None:
    with pytest.raises(UserError, match="at most 2 stages"):
        plan(chain([1.0, 1.0]), request(4, 8, stages=3))
