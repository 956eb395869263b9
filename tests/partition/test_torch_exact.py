"""Tests that the stages together compute the same bits as the unmodified model on the same micro-batches."""

import collections
import dataclasses
import itertools

import engines
import pytest
import torch
from torch.utils import _pytree as pytree
from torch_models import CASES, WIDTH, Case, made, slices

from suite.comm import setup
from suite.comm.partition.device import Device
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.costs import list_spans
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan
from suite.comm.partition.torch import alone as torch_alone
from suite.comm.partition.torch import profile as torch_profile
from suite.comm.partition.torch.links import count_bytes, pack_values, unpack_values
from suite.comm.partition.torch.rehearsal import read_form
from suite.comm.partition.torch.trace import Traced, trace_model
from suite.comm.projection.network import Level, Network
from suite.contract import UserError

DEVICE = Device(memory=2**34, flops=1e11, bandwidth=1e10, overhead=1e-6)
LINK = Level(latency=1e-9, bandwidth=1e12)
FAST = Network("fast", LINK, LINK, None, "ring", 1e12)
MICRO_BATCHES = 4
MOST = {"shared": 3, "in_place": 2, "counting": 1}  # stages of models that cannot be cut everywhere


def planned(case: Case, stages: int, *, recompute: bool = False) -> tuple[Traced, Plan]:
    """A case's graph and its plan."""
    inputs, targets = slices((case.inputs, case.targets), 0, MICRO_BATCHES)
    traced = trace_model(case.model, inputs, targets, case.loss, outputs=True)
    batch = traced.graph.samples * MICRO_BATCHES
    request = Request(stages, batch, DEVICE, FAST, stages=stages, micro_batches=MICRO_BATCHES)
    result = plan(traced.graph, request)
    again = tuple(dataclasses.replace(stage, recompute=recompute) for stage in result.stages)
    return traced, dataclasses.replace(result, stages=again)


def plain(case: Case, seeds: list[int]) -> torch_alone.Step:
    """Return the losses, results and gradients of the unmodified model."""
    losses, results = [], []
    for number in range(MICRO_BATCHES):
        inputs, targets = slices((case.inputs, case.targets), number, MICRO_BATCHES)
        torch.manual_seed(seeds[number])
        outputs = case.model(*inputs)
        loss = case.loss(outputs, targets) if case.loss else outputs
        loss.backward()
        losses.append(loss.detach())
        results.append(outputs if case.loss else ())
    grads = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    return torch_alone.Step(losses, results, grads)


@pytest.mark.sample(8)
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("stages", [3, *(pytest.param(few, marks=pytest.mark.slow) for few in (1, 2, 4))])
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_stages_have_the_bits_of_the_model(name: str, stages: int, recompute: bool) -> None:
    _compared(name, stages, recompute)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name, recompute", [("resnet50", False), ("transformer", True)])
def test_the_stages_have_the_bits_of_the_suite_s_own_models(name: str, recompute: bool) -> None:
    _compared(name, 4, recompute)


def _compared(name: str, stages: int, recompute: bool) -> None:
    seeds = list(range(100, 100 + MICRO_BATCHES))
    other = made(name)
    expected = plain(other, seeds)
    case = made(name)
    traced, cut = planned(case, min(stages, MOST.get(name, 4)), recompute=recompute)
    step = torch_alone.run(traced, cut, (case.inputs, case.targets), seeds if case.draws else ())
    assert all(map(torch.equal, step.losses, expected.losses))
    outputs, references = (list(map(pytree.tree_leaves, run.outputs)) for run in (step, expected))
    for mine, reference in zip(outputs, references, strict=True):
        assert len(mine) == len(reference) and all(map(torch.equal, mine, reference))
    assert step.sums.keys() == expected.sums.keys()
    assert not [name for name, grad in step.sums.items() if not torch.equal(grad, expected.sums[name])]
    buffers = dict(other.model.named_buffers())
    assert all(torch.equal(value, buffers[name]) for name, value in case.model.named_buffers())


def test_every_cut_of_a_tied_weight_has_the_bits_of_the_model() -> None:
    """Three stages read the weight, one or several times each."""
    expected = plain(made("tied"), [0] * MICRO_BATCHES)
    case = made("tied")
    traced, whole = planned(case, 1)
    nodes = whole.stages[0].nodes
    for first, second in itertools.combinations(range(1, len(nodes)), 2):
        home = {node: (place >= first) + (place >= second) for place, node in enumerate(nodes)}
        uses = list_spans(traced.graph, home, 3)
        stages = tuple(
            dataclasses.replace(
                whole.stages[0],
                nodes=tuple(node for node in nodes if home[node] == number),
                receives=tuple(name for name, made_in, used_in in uses if made_in < number <= used_in),
            )
            for number in range(3)
        )
        step = torch_alone.run(traced, dataclasses.replace(whole, stages=stages), (case.inputs, case.targets))
        different = [name for name, grad in step.sums.items() if not torch.equal(grad, expected.sums[name])]
        assert not different, (first, second)


def test_the_maker_of_a_value_that_changes_in_place_stays_with_its_users() -> None:
    traced, _ = planned(made("in_place"), 1)
    [changed] = {name for node in traced.graph.nodes for name in node.changes}
    tied = [node.operation for node in traced.graph.nodes if changed in node.parameters]
    assert tied[0] == "aten.mul.Tensor" and "aten.add_.Tensor" in tied


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(2, 3, 4).transpose(1, 2),
        torch.arange(6).view(2, 1, 3).expand(2, 5, 3),
        torch.arange(20.0)[::2],
        torch.tensor([True, False, True]),
        torch.tensor(3.5, dtype=torch.float64),
    ],
    ids=["transposed", "expanded", "strided", "bool", "scalar"],
)
def test_a_message_keeps_values_and_strides(tensor: torch.Tensor) -> None:
    forms = [read_form(tensor), read_form(torch.ones(3, dtype=torch.bfloat16))]
    message = pack_values([tensor, torch.ones(3, dtype=torch.bfloat16)], forms)
    assert message.numel() == count_bytes(forms)
    received, ones = unpack_values(message, forms)
    assert torch.equal(received, tensor) and received.stride() == tensor.stride()
    assert torch.equal(ones, torch.ones(3, dtype=torch.bfloat16))
    assert read_form(forms[0].empty()) == forms[0]


def test_the_profile_counts_adding_gradients_to_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_profile, "_adding", lambda device: 1.0)  # seconds for each byte
    graph = torch_profile.profile_stages(planned(made("reversed"), 1)[0], torch.device("cpu"))
    layers = [node for node in graph.nodes if node.parameters]
    assert [round(node.seconds[1]) for node in layers if node.seconds] == [4 * (WIDTH + 1) * WIDTH] * 3


def test_a_codec_changes_only_floating_point_numbers() -> None:
    torch.manual_seed(0)
    floats = torch.randn(3, 5, 7).transpose(0, 2)
    exact = [torch.randint(9, (4,)), torch.rand(6) > 0.5, torch.get_rng_state()]
    values = [floats, *exact, floats.double()]
    forms, codec = (
        [read_form(value) for value in values],
        setup.make_codec(engines.part("suite.comm.codecs.float21"), "torch"),
    )
    message = pack_values(values, forms, codec)
    assert message.numel() == count_bytes(forms, codec) < count_bytes(forms)
    first, *others, last = unpack_values(message, forms, codec)
    assert all(map(torch.equal, others, exact))
    for value, decoded in ((floats, first), (floats.double(), last)):
        assert decoded.dtype == value.dtype and decoded.stride() == value.stride()
        assert 0 < float((decoded - value).abs().max()) < 2**-13 * float(value.abs().max())


def test_a_batch_of_another_size_is_rejected() -> None:
    case = made("skipping")
    traced, cut = planned(case, 2)
    short = slices((case.inputs, case.targets), 0, 2)
    with pytest.raises(UserError, match="has 4 samples; 4 micro-batches of 2 samples need 8"):
        torch_alone.run(traced, cut, short)


def test_a_value_skips_a_stage() -> None:
    """A value crosses two cuts, as the case intends, because the stage between only passes it on."""
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
