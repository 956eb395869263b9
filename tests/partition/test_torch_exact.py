"""The stages together compute what the unmodified model computes on the same micro-batches: the same bits."""

import collections
import dataclasses
import itertools

import pytest
import torch
from torch import Tensor
from torch_models import CASES, Case, made, slices

from suite.comm.partition import torch_alone
from suite.comm.partition.device import Device
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner import Request, plan
from suite.comm.partition.torch_trace import Traced, trace
from suite.comm.projection.network import Level, Network

DEVICE = Device(memory=2**34, flops=1e11, bandwidth=1e10, overhead=1e-6)
LINK = Level(latency=1e-9, bandwidth=1e12)
FAST = Network("fast", LINK, LINK, None, "ring", 1e12)
MICRO_BATCHES = 4


def planned(case: Case, stages: int, *, recompute: bool = False) -> tuple[Traced, Plan]:
    """A case's graph and its plan."""
    inputs, targets = slices((case.inputs, case.targets), 0, MICRO_BATCHES)
    traced = trace(case.model, inputs, targets, case.loss)
    batch = traced.graph.samples * MICRO_BATCHES
    request = Request(stages, batch, DEVICE, FAST, stages=stages, micro_batches=MICRO_BATCHES)
    result = plan(traced.graph, request)
    again = tuple(dataclasses.replace(stage, recompute=recompute) for stage in result.stages)
    return traced, dataclasses.replace(result, stages=again)


def plain(case: Case, seeds: list[int]) -> tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Losses, gradients and buffers of the unmodified model."""
    losses = []
    for number in range(MICRO_BATCHES):
        inputs, targets = slices((case.inputs, case.targets), number, MICRO_BATCHES)
        torch.manual_seed(seeds[number])
        outputs = case.model(*inputs)
        loss = case.loss(outputs, targets) if case.loss else outputs
        loss.backward()
        losses.append(loss.detach())
    grads = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    return losses, grads, dict(case.model.named_buffers())


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_stages_have_the_bits_of_the_model(name: str, stages: int, recompute: bool) -> None:
    seeds = list(range(100, 100 + MICRO_BATCHES))
    expected = plain(made(name), seeds)
    case = made(name)
    limit = {"shared": 3, "in_place": 2}.get(name, 4)  # the most stages of a model that cannot be cut everywhere
    traced, cut = planned(case, min(stages, limit), recompute=recompute)
    losses, grads = torch_alone.run(traced, cut, (case.inputs, case.targets), seeds if case.draws else ())
    assert all(map(torch.equal, losses, expected[0]))
    assert grads.keys() == expected[1].keys()
    different = [name for name, grad in grads.items() if not torch.equal(grad, expected[1][name])]
    assert not different
    buffers = dict(case.model.named_buffers())
    assert all(torch.equal(value, expected[2][name]) for name, value in buffers.items())


def test_a_value_skips_a_stage() -> None:
    """The case is what it is meant to be: a value crosses two cuts, because the stage between only passes it on."""
    _, cut = planned(made("skipping"), 4)
    crossings = collections.Counter(name for stage in cut.stages for name in stage.receives)
    assert max(crossings.values()) >= 2, crossings


def test_no_cut_between_operators_that_share_a_changing_buffer() -> None:
    traced, cut = planned(made("shared"), 3)
    readers = [
        {number for number, stage in enumerate(cut.stages) if name in _parameters(traced, stage.nodes)}
        for name in ("norm.running_mean", "norm.running_var")
    ]
    assert all(len(stages) == 1 for stages in readers)


def _parameters(traced: Traced, nodes: tuple[int, ...]) -> set[str]:
    return set(itertools.chain.from_iterable(traced.graph.nodes[index].parameters for index in nodes))
